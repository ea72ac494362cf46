package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// TestExecutable has a node that gets an executable over TLS. Then it is revoked, and gets
// nothing.
func TestExecutable(t *testing.T) {
	c := newCluster(t)
	content := bytes.Repeat([]byte("kedge"), portion/2)
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, digest), content, 0o600); err != nil {
		t.Fatal(err)
	}
	c.cfg.Executable = func(digest string) (*os.File, error) { return os.Open(filepath.Join(folder, digest)) }
	address := start(t, c)
	transport := &http.Transport{TLSClientConfig: c.node(t, "edge").TLS(pki.NodeUser("edge")), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	get := func(name string) (int, []byte) {
		t.Helper()
		response, err := (&http.Client{Transport: transport}).Get("https://" + address + upgrades.ExecutablePath + name)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body
	}
	if status, body := get(digest); status != http.StatusOK || !bytes.Equal(body, content) {
		t.Errorf("got %d and %d bytes", status, len(body))
	}
	if status, _ := get(strings.Repeat("0", 64)); status != http.StatusNotFound {
		t.Errorf("what the server does not have: %d", status)
	}
	if err := registration.Revoke(t.Context(), c.client, "edge"); err != nil {
		t.Fatal(err)
	}
	if status, body := get(digest); status != http.StatusUnauthorized || len(body) > 100 {
		t.Errorf("a revoked node gets %d and %d bytes", status, len(body))
	}
}

// TestExecutableNames asks for what is no digest. No path is made of it.
func TestExecutableNames(t *testing.T) {
	c := newCluster(t)
	edge := certificate(t, c.node(t, "edge"), pki.NodeUser("edge"))
	ask := func(name string) int {
		return c.call("GET", upgrades.ExecutablePath+name, nil, func(r *http.Request) { r.TLS.PeerCertificates = edge }).Code
	}
	digest := strings.Repeat("0a", 32)
	if code := ask(digest); code != http.StatusNotFound {
		t.Errorf("a server that has none answers %d", code)
	}
	c.cfg.Executable = func(digest string) (*os.File, error) {
		t.Errorf("asked for %q", digest)
		return nil, fs.ErrNotExist
	}
	for _, name := range []string{"", "..", "../../server/token", digest[1:], digest + "0", strings.ToUpper(digest), digest[:63] + "/", digest[:62] + "%2f", digest + "/../x"} {
		if code := ask(name); code != http.StatusNotFound {
			t.Errorf("%q: %d", name, code)
		}
	}
	c.cfg.Executable = func(string) (*os.File, error) { return nil, fs.ErrPermission }
	if code := ask(digest); code != http.StatusServiceUnavailable {
		t.Errorf("a fault of the disk: %d", code)
	}
}

// TestManyExecutables has more nodes that get executables than a server serves at a time. The
// next one is to come again.
func TestManyExecutables(t *testing.T) {
	c := newCluster(t)
	c.cfg.Executable = func(string) (*os.File, error) { return nil, fs.ErrNotExist }
	for range maxSending {
		c.sending <- struct{}{}
	}
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		c.executable(w, httptest.NewRequest(http.MethodGet, upgrades.ExecutablePath+strings.Repeat("0", 64), nil))
		return w
	}
	if w := ask(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one too many: %d", w.Code)
	}
	<-c.sending
	if w := ask(); w.Code != http.StatusNotFound {
		t.Errorf("then: %d", w.Code)
	}
}

// stuck is the connection of a node that does not read. A write ends when its deadline has passed.
type stuck struct {
	http.ResponseWriter
	writing, expired chan struct{}
}

func (s *stuck) Write([]byte) (int, error) {
	close(s.writing)
	<-s.expired
	return 0, os.ErrDeadlineExceeded
}

func (s *stuck) SetWriteDeadline(deadline time.Time) error {
	if !deadline.IsZero() && !deadline.After(time.Now()) {
		close(s.expired)
	}
	return nil
}

// TestStuckNode ends a request while a node does not read.
func TestStuckNode(t *testing.T) {
	w := &stuck{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sendSlowly(ctx, w, strings.NewReader("kedge"))
	}()
	<-w.writing
	cancel()
	<-done
}

// TestFullOfOneNode has a node whose requests are all that the server sends. A further one of it
// ends the oldest one.
func TestFullOfOneNode(t *testing.T) {
	c := newCluster(t)
	c.cfg.Executable = func(string) (*os.File, error) { return nil, fs.ErrNotExist }
	for range maxSending {
		c.sending <- struct{}{}
	}
	oldest, end := c.streams.begin(t.Context(), upgrades.ExecutablePath, "greedy")
	defer end()
	for range maxStreams - 1 {
		_, end := c.streams.begin(t.Context(), upgrades.ExecutablePath, "greedy")
		defer end()
	}
	request := httptest.NewRequest(http.MethodGet, upgrades.ExecutablePath+strings.Repeat("0", 64), nil)
	w := httptest.NewRecorder()
	c.executable(w, request.WithContext(context.WithValue(request.Context(), nodeKey{}, "greedy")))
	if w.Code != http.StatusServiceUnavailable || oldest.Err() == nil {
		t.Errorf("got %d, and the oldest request has %v", w.Code, oldest.Err())
	}
}

// TestGreedyNode has a node that asks for more executables than a server sends at a time, and reads
// none. Another node gets its own.
func TestGreedyNode(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			path := filepath.Join(t.TempDir(), "kedge")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			// More than sockets hold.
			const size = 64 << 20
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			c.cfg.Executable = func(string) (*os.File, error) { return os.Open(path) }
			address := start(t, c)
			open := func(node string) *http.Response {
				t.Helper()
				transport := &http.Transport{TLSClientConfig: c.node(t, node).TLS(pki.NodeUser(node)), ForceAttemptHTTP2: http2}
				t.Cleanup(transport.CloseIdleConnections)
				for {
					response, err := (&http.Client{Transport: transport}).Get("https://" + address + upgrades.ExecutablePath + strings.Repeat("0", 64))
					if err != nil {
						t.Fatal(err)
					}
					if response.StatusCode == http.StatusOK {
						return response
					}
					// The oldest request of the node is just ending.
					response.Body.Close()
				}
			}
			for range 2*maxSending + 1 {
				response := open("greedy")
				defer response.Body.Close()
			}
			response := open("other")
			defer response.Body.Close()
			if n, err := io.Copy(io.Discard, response.Body); n != size || err != nil {
				t.Errorf("the other node gets %d bytes: %v", n, err)
			}
		})
	}
}
