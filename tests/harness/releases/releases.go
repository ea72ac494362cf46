// Package releases makes releases of kedge for install.sh, without building kedge again. Tests that
// install kedge call it.
package releases

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// Name returns the name that a release gives the executable for this machine.
func Name() string { return nameFor(runtime.GOARCH) }

func nameFor(architecture string) string {
	if architecture == "arm" {
		return "kedge-armv7"
	}
	return "kedge-" + architecture
}

// New returns the files of a release with a program for this machine, compressed with gzip.
func New(t testing.TB, program []byte) map[string][]byte {
	t.Helper()
	return For(t, runtime.GOARCH, program)
}

// For returns the files of a release with a program for machines of an architecture, by Go's name of it.
func For(t testing.TB, architecture string, program []byte) map[string][]byte {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	installer, err := os.ReadFile(filepath.Join(repository, "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&archive, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compressed.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	name := nameFor(architecture)
	return map[string][]byte{
		"install.sh": installer,
		name + ".gz": archive.Bytes(),
		"SHA256SUMS": fmt.Appendf(nil, "%x  %s\n%x  %s\n", sha256.Sum256(program), name, sha256.Sum256(archive.Bytes()), name+".gz"),
	}
}

// Script returns a program that install.sh takes for kedge: it has a version, and runs these lines.
func Script(version, lines string) []byte {
	return fmt.Appendf(nil, "#!/bin/sh\ncase $1 in\n--version) echo kedge %s ;;\n%s\n*) exit 1 ;;\nesac\n", version, lines)
}

// Older returns the executable under test with another version, that of the first build of kedge.
func Older(t testing.TB, program []byte, version string) (changed []byte, as string) {
	t.Helper()
	return Numbered(t, program, version, 1)
}

// Numbered returns the executable under test with the version of another build of kedge. It replaces the
// version everywhere the linker has written it.
func Numbered(t testing.TB, program []byte, version string, build int) (changed []byte, as string) {
	t.Helper()
	number := version[strings.LastIndex(version, ".")+1:]
	as = fmt.Sprintf("%s%0*d", strings.TrimSuffix(version, number), len(number), build)
	if len(as) != len(version) || as == version || bytes.Count(program, []byte(version)) == 0 {
		t.Fatalf("cannot make %s of %s", as, version)
	}
	return bytes.ReplaceAll(program, []byte(version), []byte(as)), as
}

// Broken builds an executable that says that it has a version, and does not work, and returns its path.
// flags set variables of it, such as waits=yes.
func Broken(t testing.TB, name, architecture, version string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	set := "-X main.version=" + version
	for _, flag := range flags {
		set += " -X main." + flag
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags", set, "-o", path, "./tests/harness/releases/broken")
	build.Dir = repository
	build.Env = append(os.Environ(), "GOARCH="+architecture, "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, output)
	}
	return path
}

// Version returns the version of the kedge under test.
func Version(t testing.TB) string {
	t.Helper()
	output, err := exec.Command(os.Getenv("KEDGE_BINARY"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimSpace(string(output)), "kedge ")
}
