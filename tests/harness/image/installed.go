package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/scripts/ociimage"
)

// PostgreSQL builds an image of busybox and of PostgreSQL from Debian's package, which must be
// installed. The programs are in the folder that PostgreSQLPrograms returns.
func PostgreSQL(repository string) (archive string, err error) {
	programs, err := PostgreSQLPrograms()
	if err != nil {
		return "", err
	}
	version := filepath.Base(filepath.Dir(programs))
	libraries := filepath.Join(filepath.Dir(programs), "lib")
	return withInstalled(repository, PostgreSQLName, []string{
		filepath.Join(programs, "postgres"), filepath.Join(programs, "initdb"), filepath.Join(programs, "psql"),
		// initdb loads these into a new database.
		filepath.Join(libraries, "dict_snowball.so"), filepath.Join(libraries, "plpgsql.so"),
	}, filepath.Join("/usr/share/postgresql", version))
}

// PostgreSQLPrograms returns the folder of the newest installed PostgreSQL. Debian does not add it
// to PATH.
func PostgreSQLPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return "", errors.Join(errors.New("no PostgreSQL in /usr/lib/postgresql"), err)
	}
	return found[len(found)-1], nil
}

// Fio builds an image of busybox and of Debian's fio, which must be installed.
func Fio(repository string) (archive string, err error) {
	return withInstalled(repository, FioName, []string{"/usr/bin/fio"})
}

// Prometheus builds an image of Debian's Prometheus, which `make` takes from its package,
// under a name that the caller gives it. It is run like the image that Prometheus
// publishes.
func Prometheus(repository, name string) (archive string, err error) {
	program := filepath.Join(repository, "build", runtime.GOARCH, "prometheus")
	output, err := exec.Command("ldd", program).Output()
	if err != nil {
		return "", fmt.Errorf("find the libraries of Prometheus (`make %s` gets it): %w", filepath.Join("build", runtime.GOARCH, "prometheus"), err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("read Prometheus: %w", err)
	}
	files := []ociimage.File{{Name: "bin/prometheus", Mode: 0o755, Data: data}, {Name: "tmp/", Mode: 0o1777}}
	for _, match := range linked.FindAllSubmatch(output, -1) {
		data, err := os.ReadFile(string(match[1]))
		if err != nil {
			return "", fmt.Errorf("read library: %w", err)
		}
		files = append(files, ociimage.File{Name: string(match[1][1:]), Mode: 0o755, Data: data})
	}
	return own(repository).write(name, ocispec.ImageConfig{Entrypoint: []string{"/bin/prometheus"}}, files)
}

// linked matches a library in the output of ldd.
var linked = regexp.MustCompile(`(/\S+) \(0x`)

// withInstalled builds an image of busybox, of programs of this machine with the libraries that they
// link, and of folders. Their paths are the same as on this machine.
func withInstalled(repository, name string, programs []string, folders ...string) (string, error) {
	files, err := own(repository).busybox()
	if err != nil {
		return "", err
	}
	output, err := exec.Command("ldd", programs...).Output()
	if err != nil {
		return "", fmt.Errorf("find the libraries of %v: %w", programs, err)
	}
	for _, match := range linked.FindAllSubmatch(output, -1) {
		programs = append(programs, string(match[1]))
	}
	slices.Sort(programs)
	for _, path := range slices.Compact(programs) {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		files = append(files, ociimage.File{Name: path[1:], Mode: 0o755, Data: data})
	}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			files = append(files, ociimage.File{Name: path[1:], Mode: 0o644, Data: data})
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return own(repository).write(name, withBusybox, files)
}
