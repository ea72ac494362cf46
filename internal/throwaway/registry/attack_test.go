package registry

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestWebPages refuses what browsers send for web pages, and names of other hosts.
func TestWebPages(t *testing.T) {
	r := open(t, t.TempDir())
	name := clients(t, r)
	start := "http://" + name + "/v2/app/blobs/uploads/"
	_, port, _ := strings.Cut(name, ":")
	for _, headers := range [][]string{
		{"Origin", "https://example.com"},
		{"Origin", "null"},
		{"Origin", ""},
		{"Origin", "http://" + name},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-origin"},
		{"Host", "example.com"},
		{"Host", "example.com:" + port},
		{"Host", "localhost.example.com:" + port},
		{"Host", "localhost.:" + port},
		{"Host", "198.18.7.1:" + port},
		{"Host", "[::2]:" + port},
	} {
		t.Log(headers)
		want(t, request(t, "POST", start, nil, headers...), http.StatusForbidden, codeDenied)
		want(t, request(t, "GET", "http://"+name+"/v2/", nil, headers...), http.StatusForbidden, codeDenied)
	}
	for _, host := range []string{name, "LOCALHOST:" + port, "127.0.0.1:" + port, "[::1]:" + port, "127.0.0.1"} {
		want(t, request(t, "POST", start, nil, "Host", host), http.StatusAccepted, "")
	}
	want(t, request(t, "GET", "http://"+name+"/v2/", nil, "Sec-Fetch-Site", "none"), http.StatusOK, "")
}

// TestNodesOnlyPull refuses everything else at the address that pods can reach.
func TestNodesOnlyPull(t *testing.T) {
	r := open(t, t.TempDir())
	push(t, clients(t, r)+"/app:v1", newImage(t, 10)...)
	base := "http://" + serveAt(t, r.Nodes(), "198.18.7.1")
	want(t, request(t, "GET", base+"/v2/app/manifests/v1", nil), http.StatusOK, "")
	want(t, request(t, "HEAD", base+"/v2/app/manifests/v1", nil), http.StatusOK, "")
	want(t, request(t, "GET", base+"/v2/app/manifests/v1", nil, "Host", "rebound.example.com"), http.StatusForbidden, codeDenied)
	for method, path := range map[string]string{
		"POST": "/v2/app/blobs/uploads/", "PUT": "/v2/app/manifests/v1", "PATCH": "/v2/app/blobs/uploads/AAAAAAAAAAAAAAAAAAAAAAAAAA",
		"DELETE": "/v2/app/manifests/v1", "OPTIONS": "/v2/", "get": "/v2/",
	} {
		want(t, request(t, method, base+path, []byte("{}"), "X-HTTP-Method-Override", "GET"), http.StatusMethodNotAllowed, codeUnsupported)
	}
	want(t, request(t, "GET", base+"/v2/app/manifests/v1", nil), http.StatusOK, "")
}

// TestOtherUsers refuses processes of users who have nothing to do with the cluster, even if they close
// their connection at once.
func TestOtherUsers(t *testing.T) {
	const owner, stranger = 1000, 1001
	r := open(t, t.TempDir())
	address := serveAt(t, r.Clients(owner), "127.0.0.1")
	// The thread's file system user is the one that a new socket belongs to.
	dial := func(user int) net.Conn {
		t.Helper()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := unix.SetfsuidRetUid(user); err != nil {
			t.Fatal(err)
		}
		defer unix.SetfsuidRetUid(0)
		connection, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { connection.Close() })
		return connection
	}
	const start = "POST /v2/app/blobs/uploads/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	for user, status := range map[int]string{0: "202", owner: "202", stranger: "403"} {
		connection := dial(user)
		if _, err := io.WriteString(connection, start); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(connection)
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 "+status) {
			t.Errorf("user %d gets %s, %v; want %s", user, text, err, status)
		}
		if user == stranger && !strings.Contains(string(text), "user 1001 cannot use this registry: only root and the user who created the cluster can. Try again with sudo") {
			t.Errorf("got %s", text)
		}
	}
	connection := dial(stranger)
	if _, err := io.WriteString(connection, "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(connection); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
		t.Errorf("a stranger asks whether this is a registry, and gets %s, %v", text, err)
	}
	began := len(r.uploads)
	for range 50 {
		connection := dial(stranger)
		_, _ = io.WriteString(connection, start)
		_ = connection.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(connection)
		connection = dial(stranger)
		_, _ = io.WriteString(connection, start)
		connection.Close()
	}
	want(t, request(t, "GET", "http://"+address+"/v2/", nil), http.StatusOK, "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.uploads) != began {
		t.Errorf("a stranger has started %d uploads", len(r.uploads)-began)
	}
}

// TestManyUploads starts thousands of uploads and leaves them. They end by themselves.
func TestManyUploads(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r, err := New(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		handler := r.routes()
		do := func(method, path, text string) answer {
			t.Helper()
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(text)))
			return answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}
		}
		used := do("POST", "/v2/app/blobs/uploads/", "").header.Get("Location")
		for i := 1; i < 3000; i++ {
			a := do("POST", "/v2/app/blobs/uploads/", "")
			if i < maxUploads {
				want(t, a, http.StatusAccepted, "")
			} else {
				want(t, a, http.StatusTooManyRequests, codeTooManyRequests)
			}
		}
		time.Sleep(maxIdle / 2)
		want(t, do("PATCH", used, "content"), http.StatusAccepted, "")
		time.Sleep(maxIdle/2 + time.Second)
		synctest.Wait()
		if left, _ := filepath.Glob(filepath.Join(folder, "content/ingest/*")); len(left) != 1 {
			t.Errorf("%d uploads are left", len(left))
		}
		want(t, do("POST", "/v2/app/blobs/uploads/", ""), http.StatusAccepted, "")
		want(t, do("PUT", used+"?digest="+digest.FromString("content").String(), ""), http.StatusCreated, "")
		r.Close()
		want(t, do("POST", "/v2/app/blobs/uploads/", ""), http.StatusServiceUnavailable, codeUnknown)
		if left, _ := filepath.Glob(filepath.Join(folder, "content/ingest/*")); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}

// TestBrokenUpload keeps what has arrived when a client goes away, and refuses two requests at once.
func TestBrokenUpload(t *testing.T) {
	r := open(t, t.TempDir())
	name := clients(t, r)
	location := request(t, "POST", "http://"+name+"/v2/app/blobs/uploads/", nil).header.Get("Location")
	connection, err := net.Dial("tcp", strings.Replace(name, "localhost", "127.0.0.1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(connection, "PATCH "+location+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n0123"); err != nil {
		t.Fatal(err)
	}
	status := func(wanted int) answer {
		t.Helper()
		for {
			a := request(t, "GET", "http://"+name+location, nil)
			if a.status == wanted {
				return a
			}
			select {
			case <-t.Context().Done():
				t.Fatalf("got %d, want %d", a.status, wanted)
			case <-time.After(time.Millisecond):
			}
		}
	}
	want(t, status(http.StatusConflict), http.StatusConflict, codeUploadInvalid)
	connection.Close()
	if got := status(http.StatusNoContent).header.Get("Range"); got != "0-3" {
		t.Errorf("got range %s", got)
	}
	want(t, request(t, "PUT", "http://"+name+location+"?digest="+digest.FromString("01234567").String(), []byte("4567")), http.StatusCreated, "")
}

// TestFullDisk refuses what does not fit, says so, and leaves the disk as it was.
func TestFullDisk(t *testing.T) {
	folder := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("this test needs root, because it mounts a disk")
	}
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	r := open(t, folder)
	name := clients(t, r)
	start := "http://" + name + "/v2/app/blobs/uploads/"
	large := bytes.Repeat([]byte("x"), 48<<20)
	for range 3 {
		a := request(t, "POST", start+"?digest="+digest.FromBytes(large).String(), large)
		want(t, a, http.StatusRequestEntityTooLarge, codeDenied)
		if wanted := "the disk of " + folder + " has no space left for this image: free some space there, or delete clusters"; !strings.Contains(string(a.body), wanted) {
			t.Errorf("got %s, want %s", a.body, wanted)
		}
	}
	location := "http://" + name + request(t, "POST", start, nil).header.Get("Location")
	want(t, request(t, "PATCH", location, large), http.StatusRequestEntityTooLarge, codeDenied)
	want(t, request(t, "GET", location, nil), http.StatusNotFound, codeUploadUnknown)
	push(t, name+"/app:v1", newImage(t, 20<<20)...)
	if left, _ := filepath.Glob(filepath.Join(folder, "content/ingest/*")); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	// Somebody else fills the disk.
	if err := os.WriteFile(filepath.Join(folder, "other"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, request(t, "POST", start, nil), http.StatusRequestEntityTooLarge, codeDenied)
	want(t, request(t, "GET", "http://"+name+"/v2/app/manifests/v1", nil), http.StatusOK, "")
}
