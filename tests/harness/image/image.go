// Package image builds the tests' container images without a network: from Debian's busybox, from
// tests/images, and from installed packages.
package image

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path"
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

// Maker makes images for machines of an architecture, by Go's name of it.
type Maker struct{ Repository, Architecture string }

// own makes images for this machine.
func own(repository string) Maker { return Maker{repository, runtime.GOARCH} }

// withBusybox is the configuration of an image that has busybox.
var withBusybox = ocispec.ImageConfig{Env: []string{"PATH=/bin:/usr/bin"}, Cmd: []string{"sh"}}

// Busybox builds an image of the static busybox that `make` takes from Debian's package, with a
// link for each of its programs.
func Busybox(repository string) (archive string, err error) { return own(repository).Busybox() }

// Busybox is the function Busybox for the architecture of m. busybox of this machine must be there too.
func (m Maker) Busybox() (archive string, err error) { return m.busyboxAs(BusyboxName) }

// BusyboxAs is Busybox under the name of an image of somebody else's.
func BusyboxAs(repository, name string) (archive string, err error) {
	return own(repository).busyboxAs(name)
}

func (m Maker) busyboxAs(name string) (archive string, err error) {
	files, err := m.busybox()
	if err != nil {
		return "", err
	}
	return m.write(name, withBusybox, files)
}

func (m Maker) busybox() ([]ociimage.File, error) {
	program := func(architecture string) string { return filepath.Join("build", architecture, "busybox") }
	binary, err := os.ReadFile(filepath.Join(m.Repository, program(m.Architecture)))
	if err != nil {
		return nil, fmt.Errorf("read busybox (`make GOARCH=%s %s` gets it): %w", m.Architecture, program(m.Architecture), err)
	}
	list, err := exec.Command(filepath.Join(m.Repository, program(runtime.GOARCH)), "--list").Output()
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
func TestserverProgram(repository string) string { return own(repository).program("testserver") }

// program is where the program of a package of Go is built.
func (m Maker) program(name string) string {
	if m.Architecture != runtime.GOARCH {
		name += "-" + m.Architecture
	}
	return filepath.Join(m.Repository, "build", "test-images", name)
}

// Testserver builds an image with only tests/images/testserver.
func Testserver(repository string) (archive string, err error) { return own(repository).Testserver() }

// Testserver is the function Testserver for the architecture of m.
func (m Maker) Testserver() (archive string, err error) {
	if err := m.build("./tests/images/testserver", m.program("testserver")); err != nil {
		return "", err
	}
	return m.testserver(TestserverName)
}

// Plugin builds an image with only tests/images/deviceplugin.
func (m Maker) Plugin() (archive string, err error) {
	return m.ofProgram("./tests/images/deviceplugin", PluginName)
}

// Build builds a package of Go for hosts of tests, and returns where the program is.
func Build(repository, goPackage string) (string, error) {
	m := own(repository)
	binary := m.program(path.Base(goPackage))
	return binary, m.build(goPackage, binary)
}

// build builds a package of Go without cgo. A machine without Go (tests/machines) uses what was built elsewhere.
func (m Maker) build(goPackage, binary string) error {
	if _, err := exec.LookPath("go"); err != nil {
		if _, missing := os.Stat(binary); missing == nil {
			return nil
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, goPackage)
	build.Dir = m.Repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOARCH="+m.Architecture)
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", goPackage, err, output)
	}
	return nil
}

// StandIn builds an image with testserver under the name of an image of somebody
// else's: without arguments it serves HTTP at port 80. Testserver was called before.
func StandIn(repository, name string) (archive string, err error) {
	return own(repository).testserver(name, "serve", "80")
}

func (m Maker) testserver(name string, command ...string) (archive string, err error) {
	data, err := os.ReadFile(m.program("testserver"))
	if err != nil {
		return "", fmt.Errorf("read testserver: %w", err)
	}
	return m.write(name, ocispec.ImageConfig{
		Env:        []string{"PATH=/"},
		Entrypoint: []string{"/testserver"},
		Cmd:        command,
	}, []ociimage.File{
		{Name: "testserver", Mode: 0o755, Data: data},
		{Name: "tmp/", Mode: 0o1777},
	})
}

// write writes an archive whose name has the hash of its content, unless it exists.
func (m Maker) write(name string, config ocispec.ImageConfig, files []ociimage.File) (string, error) {
	data, err := ociimage.Archive(name, m.Architecture, config, files)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	base := strings.NewReplacer("/", "-", ":", "-").Replace(name)
	path := filepath.Join(m.Repository, "build", "test-images", fmt.Sprintf("%s-%x.tar", base, sha256.Sum256(data)))
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
	return own(repository).ofProgram(goPackage, name)
}

func (m Maker) ofProgram(goPackage, name string) (archive string, err error) {
	binary := m.program(filepath.Base(goPackage))
	if err := m.build(goPackage, binary); err != nil {
		return "", err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("read program: %w", err)
	}
	return m.write(name, ocispec.ImageConfig{Env: []string{"PATH=/"}, Entrypoint: []string{"/program"}}, []ociimage.File{
		{Name: "program", Mode: 0o755, Data: data},
		{Name: "tmp/", Mode: 0o1777},
	})
}
