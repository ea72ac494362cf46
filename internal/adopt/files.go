package adopt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// packaged are the files and folders in k3s's folder of manifests that k3s itself writes
// at each start. Their objects are in the datastore.
var packaged = []string{"ccm", "coredns", "gateway-api-crd", "local-storage", "metrics-server", "rolebindings", "runtimes", "traefik"}

// takeAuthorities copies the authorities and the key of service accounts.
func (a *adoption) takeAuthorities(context.Context) error {
	secrets := map[string][]byte{}
	for _, name := range pki.SharedFiles() {
		text, err := os.ReadFile(a.k3s.server("tls", name))
		switch {
		case err == nil:
			secrets[name] = text
		case !errors.Is(err, fs.ErrNotExist):
			return err
		case name != pki.EncryptionKey && filepath.Dir(name) == ".":
			return fmt.Errorf("k3s has no file %s, without which certificates and tokens of the cluster would become invalid: start k3s once, and if it does not make the file, restore it from a backup",
				a.k3s.server("tls", name))
		}
	}
	if err := pki.KeepSecrets(a.made, secrets); err != nil {
		return err
	}
	var err error
	a.under, err = pki.KeepEncryptionKey(a.made)
	return err
}

// takeToken keeps the secret of the join token. The hash in the token is another one: k3s
// hashes the text of the authority, and kedge the certificate in it.
func (a *adoption) takeToken(context.Context) error {
	text, err := os.ReadFile(a.k3s.server("token"))
	if err != nil {
		return fmt.Errorf("%w: start k3s once, which writes the file", err)
	}
	secret, err := join.ServerSecret(string(text))
	if err != nil {
		return fmt.Errorf("read %s: %w", a.k3s.server("token"), err)
	}
	authority, err := os.ReadFile(filepath.Join(a.made.ServerTLS(), "server-ca.crt"))
	if err != nil {
		return err
	}
	if _, err := join.EnsureToken(a.made, secret, authority); err != nil {
		return err
	}
	a.report.note("The secret of the join token stays the same, and the token begins with another hash: to join nodes, use the whole token in %s", a.dir.ServerToken())
	if agents := a.agentSecret(); agents != "" && agents != secret && a.Settings.Server.AgentToken == "" {
		a.report.note("k3s has a token of its own for agents. To keep it, set agent-token in kedge's configuration to its secret, which is in %s", a.k3s.server("cred", "passwd"))
	}
	return nil
}

// agentSecret returns the secret with which k3s's agents join, or an empty text. k3s's
// file has lines of SECRET,USER,USER,GROUP.
func (a *adoption) agentSecret() string {
	text, _ := os.ReadFile(a.k3s.server("cred", "passwd")) // k3s may have none
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimSpace(line), ","); len(fields) > 2 && fields[1] == "node" {
			return fields[0]
		}
	}
	return ""
}

// takeManifests copies the manifests of the user, and all charts: HelmCharts name those.
func (a *adoption) takeManifests(context.Context) error {
	return errors.Join(
		copyTree(a.k3s.server("manifests"), a.made.Manifests(), isPackaged),
		copyTree(a.k3s.server("static", "charts"), a.made.Charts(), nil),
	)
}

// isPackaged tells whether k3s itself writes a file or folder in its folder of manifests.
// With the ending .skip, the user keeps k3s from applying such a file.
func isPackaged(name string) bool {
	name = strings.TrimSuffix(name, ".skip")
	return slices.Contains(packaged, strings.TrimSuffix(name, ".yaml"))
}

// takeRegistries copies registries.yaml, unless kedge has one.
func (a *adoption) takeRegistries(context.Context) error {
	theirs := a.k3s.registries()
	text, err := os.ReadFile(theirs)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	file := a.Settings.Node.PrivateRegistry
	existing, err := os.ReadFile(file)
	switch {
	case err == nil && !bytes.Equal(existing, text):
		a.report.note("%s was there already and stays. k3s's is %s", file, theirs)
		return nil
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return datadir.Explain(err)
	}
	return datadir.WriteFile(file, text, 0o600)
}

// takeArchives copies the archives of images and the static pods of the user, and names the
// files of the user that stay. k3s keeps a list of the archives that it has imported in the
// hidden file .cache.json.
func (a *adoption) takeArchives(context.Context) error {
	hidden := func(name string) bool { return strings.HasPrefix(name, ".") }
	files, err := k3shost.Files(a.k3s.data)
	for _, file := range files {
		a.report.note("kedge does not read %s. %s", file.Path, strings.TrimSuffix(file.Do, "."))
	}
	return errors.Join(
		err,
		copyTree(filepath.Join(a.k3s.data, "agent", "images"), a.dir.Images(), hidden),
		copyTree(filepath.Join(a.k3s.data, "agent", "pod-manifests"), a.dir.StaticPods(), nil),
	)
}

// copyTree copies the regular files in a folder, and what symbolic links lead to, without
// those that leave says. Each file is complete or absent. A folder that does not exist is
// empty.
func copyTree(from, to string, leave func(path string) bool) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if leave != nil && leave(name) {
			continue
		}
		source := filepath.Join(from, name)
		info, err := os.Stat(source)
		switch {
		case errors.Is(err, fs.ErrNotExist): // a link that leads nowhere
			continue
		case err == nil && info.IsDir():
			err = copyTree(source, filepath.Join(to, name), nil)
		case err == nil && info.Mode().IsRegular():
			err = copyFile(source, filepath.Join(to, name), info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file with its time. It keeps an equal file that is there.
func copyFile(from, to string, info fs.FileInfo) (err error) {
	if there, err := os.Stat(to); err == nil && there.Size() == info.Size() && there.ModTime().Equal(info.ModTime()) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return datadir.Explain(err)
	}
	source, err := datadir.OpenRegular(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return writeWhole(to, func(file *os.File) error {
		_, err := io.Copy(file, source)
		return errors.Join(err, file.Chmod(info.Mode().Perm()), os.Chtimes(file.Name(), info.ModTime(), info.ModTime()))
	})
}

// writeWhole writes a file that may be too large for datadir.WriteFile. After a crash the
// file is complete, or what it was before. The temporary file has no suffix of an archive
// of images.
func writeWhole(path string, write func(*os.File) error) (err error) {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return datadir.Explain(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(datadir.Explain(err), os.Remove(temporary))
		}
	}()
	if err := errors.Join(write(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return datadir.SyncFolder(filepath.Dir(path))
}
