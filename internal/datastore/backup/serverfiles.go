package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/datastore/backup/records"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

// The names of files in a backup.
const (
	// AboutName has About.
	AboutName = "about.json"
	TokenName = "token"
	// SecretsFolder has what snapshot.ReadSecrets returns, and ConfigFolder the configuration.
	SecretsFolder = "secrets"
	ConfigFolder  = "etc"
)

// maxFile is the size of the largest file of a folder that is in the backup, and maxFiles that of all together, in bytes.
const (
	maxFile  = 1 << 20
	maxFiles = 8 << 20
)

// About says whose backup it is.
type About struct {
	Kedge string `json:"kedge"`
	// Node is the name of the server's node.
	Node string `json:"node"`
}

// Server says where the files of a server are.
type Server struct {
	Node string
	Dir  datadir.Dir
	// Encryption is the file of the API server's encryption-provider-config, or empty.
	Encryption string
	// Etc is the folder of the configuration. Left out are the files in it that are named here.
	Etc  string
	Left []string
}

// Folders returns the folders in the data directory that are in the backup, by their names there.
func Folders(dir datadir.Dir) map[string]string {
	return map[string]string{"manifests": dir.Manifests(), "pod-manifests": dir.StaticPods()}
}

// Files reads the files of the server.
func (s Server) Files() ([]records.File, error) {
	text, err := json.Marshal(About{Kedge: version.Version, Node: s.Node})
	if err != nil {
		return nil, fmt.Errorf("encode what the backup is of: %w", err)
	}
	files := []records.File{{Name: AboutName, Content: text}}
	token, err := datadir.ReadText(s.Dir.ServerToken())
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	files = append(files, records.File{Name: TokenName, Mode: 0o600, Content: token})
	secrets, err := snapshot.ReadSecrets(s.Dir, s.Encryption)
	if err != nil {
		return nil, err
	}
	for name, content := range secrets {
		files = append(files, records.File{Name: path.Join(SecretsFolder, name), Mode: 0o600, Content: content})
	}
	folders := Folders(s.Dir)
	folders[ConfigFolder] = s.Etc
	for name, folder := range folders {
		if files, err = s.add(files, name, folder); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b records.File) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

// errTooMuch says that a folder has more than belongs there.
var errTooMuch = errors.New("the files for the backup are larger than 8 MiB together: move what does not belong there")

// add adds the regular files of a folder. Links are left out, and so are files that are too large.
func (s Server) add(files []records.File, name, folder string) ([]records.File, error) {
	var size int64
	err := filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.Type().IsRegular() || slices.Contains(s.Left, file) {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Size() > maxFile {
			return nil // it is gone, or too large
		}
		if size += info.Size(); size > maxFiles {
			return fmt.Errorf("%s: %w", folder, errTooMuch)
		}
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		files = append(files, records.File{Name: path.Join(name, filepath.ToSlash(inside)), Mode: info.Mode().Perm(), Content: content})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read files for the backup: %w", err)
	}
	return files, nil
}
