package install

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

// release is a folder from which install.sh installs.
type release map[string][]byte

// unpacked returns the release with the program in place of its archive.
func (r release) unpacked(program []byte) release {
	changed := maps.Clone(r)
	delete(changed, releases.Name()+".gz")
	changed[releases.Name()] = program
	return changed
}

// newRelease returns a release with a program for this machine.
func newRelease(t *testing.T, program []byte) release {
	t.Helper()
	return releases.New(t, program)
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
