// Package image builds the tests' container images without a network: from Debian's busybox, from
// tests/images, and from installed packages.
package image

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/scripts/ociimage"
)

// The names that pods use. There is no such registry, so a pod without the preloaded image fails.
const (
	BusyboxName    = "kedge.test/busybox:1"
	TestserverName = "kedge.test/testserver:1"
	PostgreSQLName = "kedge.test/postgresql:1"
	FioName        = "kedge.test/fio:1"
	PluginName     = "kedge.test/deviceplugin:1"
)

// withBusybox is the configuration of an image that has busybox.
var withBusybox = ocispec.ImageConfig{Env: []string{"PATH=/bin:/usr/bin"}, Cmd: []string{"sh"}}

// Busybox builds an image of the static busybox that `make` takes from Debian's package, with a
// link for each of its programs.
func Busybox(repository string) (archive string, err error) {
	files, err := busybox(repository)
	if err != nil {
		return "", err
	}
	return write(repository, BusyboxName, withBusybox, files)
}

func busybox(repository string) ([]ociimage.File, error) {
	path := filepath.Join(repository, "build", runtime.GOARCH, "busybox")
	binary, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read busybox (`make %s` gets it): %w", filepath.Join("build", runtime.GOARCH, "busybox"), err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list busybox's programs: %w", err)
	}
	files := []ociimage.File{
		{Name: "bin/busybox", Mode: 0o755, Data: binary},
		{Name: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{Name: "root/", Mode: 0o700},
		{Name: "tmp/", Mode: 0o1777},
	}
	for _, program := range strings.Fields(string(list)) {
		if program != "busybox" {
			files = append(files, ociimage.File{Name: "bin/" + program, Link: "busybox"})
		}
	}
	return files, nil
}

// TestserverProgram returns the path of the program in Testserver's image, for use on a host.
// Testserver must have been called.
func TestserverProgram(repository string) string {
	return filepath.Join(repository, "build", "test-images", "testserver")
}

// Testserver builds an image with only tests/images/testserver.
func Testserver(repository string) (archive string, err error) {
	if err := buildProgram(repository, "./tests/images/testserver", TestserverProgram(repository)); err != nil {
		return "", err
	}
	return testserver(repository, TestserverName)
}

// Plugin builds an image with only tests/images/deviceplugin.
func Plugin(repository string) (archive string, err error) {
	return Program(repository, "./tests/images/deviceplugin", PluginName)
}

// buildProgram builds a package of Go without cgo. A machine without Go (tests/machines) uses what was built elsewhere.
func buildProgram(repository, goPackage, binary string) error {
	if _, err := exec.LookPath("go"); err != nil {
		if _, missing := os.Stat(binary); missing == nil {
			return nil
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, goPackage)
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", goPackage, err, output)
	}
	return nil
}

// StandIn builds an image with testserver under the name of an image of somebody
// else's: without arguments it serves HTTP at port 80. Testserver was called before.
func StandIn(repository, name string) (archive string, err error) {
	return testserver(repository, name, "serve", "80")
}

func testserver(repository, name string, command ...string) (archive string, err error) {
	data, err := os.ReadFile(TestserverProgram(repository))
	if err != nil {
		return "", fmt.Errorf("read testserver: %w", err)
	}
	return write(repository, name, ocispec.ImageConfig{
		Env:        []string{"PATH=/"},
		Entrypoint: []string{"/testserver"},
		Cmd:        command,
	}, []ociimage.File{
		{Name: "testserver", Mode: 0o755, Data: data},
		{Name: "tmp/", Mode: 0o1777},
	})
}

// write writes an archive whose name has the hash of its content, unless it exists.
func write(repository, name string, config ocispec.ImageConfig, files []ociimage.File) (string, error) {
	data, err := ociimage.Archive(name, runtime.GOARCH, config, files)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	base := strings.NewReplacer("/", "-", ":", "-").Replace(name)
	path := filepath.Join(repository, "build", "test-images", fmt.Sprintf("%s-%x.tar", base, sha256.Sum256(data)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), base)
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	return path, nil
}

// Program builds an image whose only program is a package of Go. The image has the given name, and
// the program is its entry point.
func Program(repository, goPackage, name string) (archive string, err error) {
	binary := filepath.Join(repository, "build", "test-images", filepath.Base(goPackage))
	if err := buildProgram(repository, goPackage, binary); err != nil {
		return "", err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("read program: %w", err)
	}
	return write(repository, name, ocispec.ImageConfig{Env: []string{"PATH=/"}, Entrypoint: []string{"/program"}}, []ociimage.File{
		{Name: "program", Mode: 0o755, Data: data},
		{Name: "tmp/", Mode: 0o1777},
	})
}
