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
	files, err := Programs(program)
	if err != nil {
		return "", fmt.Errorf("%w: `make %s` gets it", err, filepath.Join("build", runtime.GOARCH, "prometheus"))
	}
	for i, file := range files {
		if file.Name == program[1:] {
			files[i].Name = "bin/prometheus"
		}
	}
	files = append(files, ociimage.File{Name: "tmp/", Mode: 0o1777})
	return own(repository).write(name, ocispec.ImageConfig{Entrypoint: []string{"/bin/prometheus"}}, files)
}

// Nginx builds an image of busybox and of Debian's nginx, which must be installed. It answers at a port, as the image that
// nginx publishes does at port 80.
func Nginx(repository, name string, port int) (archive string, err error) {
	files, err := installed(repository, []string{"/usr/sbin/nginx"})
	if err != nil {
		return "", err
	}
	const settings = "user nobody nogroup;\npid /var/run/nginx.pid;\nerror_log stderr;\nevents {}\n" +
		"http {\n\taccess_log off;\n\tserver { listen %d; location / { return 200 \"nginx\\n\"; } }\n}\n"
	for _, folder := range []string{"var/run/", "var/log/nginx/", "var/lib/nginx/"} {
		files = append(files, ociimage.File{Name: folder, Mode: 0o755})
	}
	files = append(files, ociimage.File{Name: "etc/nginx/nginx.conf", Mode: 0o644, Data: fmt.Appendf(nil, settings, port)})
	return own(repository).write(name, ocispec.ImageConfig{
		Env: withBusybox.Env, Cmd: []string{"/usr/sbin/nginx", "-c", "/etc/nginx/nginx.conf", "-g", "daemon off;"},
	}, files)
}

// WithBusybox builds an image of busybox and of files, which take the place of those of busybox's image.
func WithBusybox(repository, name string, config ocispec.ImageConfig, more ...ociimage.File) (archive string, err error) {
	files, err := own(repository).busybox()
	if err != nil {
		return "", err
	}
	files = slices.DeleteFunc(files, func(file ociimage.File) bool {
		return slices.ContainsFunc(more, func(other ociimage.File) bool { return other.Name == file.Name })
	})
	config.Env = withBusybox.Env
	return own(repository).write(name, config, append(files, more...))
}

// linked matches a library in the output of ldd.
var linked = regexp.MustCompile(`(/\S+) \(0x`)

// withInstalled builds an image of busybox, of programs of this machine with the libraries that they
// link, and of folders. Their paths are the same as on this machine.
func withInstalled(repository, name string, programs []string, folders ...string) (string, error) {
	files, err := installed(repository, programs, folders...)
	if err != nil {
		return "", err
	}
	return own(repository).write(name, withBusybox, files)
}

// installed returns the files of withInstalled.
func installed(repository string, programs []string, folders ...string) ([]ociimage.File, error) {
	files, err := own(repository).busybox()
	if err != nil {
		return nil, err
	}
	linked, err := Programs(programs...)
	if err != nil {
		return nil, err
	}
	files = append(files, linked...)
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
			return nil, err
		}
	}
	return files, nil
}

// Programs returns programs of this machine, with the libraries that they link.
func Programs(programs ...string) (files []ociimage.File, err error) {
	output, err := exec.Command("ldd", programs...).Output()
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %v: %w", programs, err)
	}
	paths := slices.Clone(programs)
	for _, match := range linked.FindAllSubmatch(output, -1) {
		paths = append(paths, string(match[1]))
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, ociimage.File{Name: path[1:], Mode: 0o755, Data: data})
	}
	return files, nil
}
