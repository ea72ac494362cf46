package install

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// script returns a program that install.sh takes for kedge: it has a version, and runs these lines.
func script(version, lines string) []byte {
	return fmt.Appendf(nil, "#!/bin/sh\ncase $1 in\n--version) echo kedge %s ;;\n%s\n*) exit 1 ;;\nesac\n", version, lines)
}

// older returns the executable under test with another version, that of the first build of kedge.
// It replaces the version everywhere the linker has written it.
func older(t *testing.T, program []byte, version string) (changed []byte, as string) {
	t.Helper()
	number := version[strings.LastIndex(version, ".")+1:]
	as = strings.TrimSuffix(version, number) + strings.Repeat("0", len(number)-1) + "1"
	if as == version || bytes.Count(program, []byte(version)) == 0 {
		t.Fatalf("cannot make an older version of %s", version)
	}
	return bytes.ReplaceAll(program, []byte(version), []byte(as)), as
}

// release is a folder from which install.sh installs.
type release map[string][]byte

// programName returns the name that a release gives the executable for this machine.
func programName() string {
	if runtime.GOARCH == "arm" {
		return "kedge-armv7"
	}
	return "kedge-" + runtime.GOARCH
}

// unpacked returns the release with the program in place of its archive.
func (r release) unpacked(program []byte) release {
	changed := maps.Clone(r)
	delete(changed, programName()+".gz")
	changed[programName()] = program
	return changed
}

// newRelease returns a release with a program for this machine, compressed with gzip.
func newRelease(t *testing.T, program []byte) release {
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
	name := programName()
	return release{
		"install.sh": installer,
		name + ".gz": archive.Bytes(),
		"SHA256SUMS": fmt.Appendf(nil, "%x  %s\n%x  %s\n", sha256.Sum256(program), name, sha256.Sum256(archive.Bytes()), name+".gz"),
	}
}

// damaged returns the release with one byte of its archive changed.
func (r release) damaged() release {
	changed := release{}
	for name, data := range r {
		if strings.HasSuffix(name, ".gz") {
			data = bytes.Clone(data)
			data[len(data)/2] ^= 1
		}
		changed[name] = data
	}
	return changed
}

// write writes the release into a folder of the host.
func (r release) write(t *testing.T, host *harness.Host, folder string) {
	t.Helper()
	for name, data := range r {
		host.WriteFile(filepath.Join(folder, name), string(data))
	}
}

// serve serves the release on the host, and returns its URL.
func (r release) serve(t *testing.T, host *harness.Host) string {
	t.Helper()
	listener := host.Listen(net.JoinHostPort(host.Address.String(), "0"))
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			data, ok := r[strings.TrimPrefix(request.URL.Path, "/release/")]
			if !ok {
				http.NotFound(w, request)
				return
			}
			_, _ = io.Copy(w, bytes.NewReader(data))
		}))
	}()
	return "http://" + listener.Addr().String() + "/release"
}
