package registry

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// open opens the registry in a folder until the test ends.
func open(t testing.TB, folder string) *Registry {
	t.Helper()
	r, err := New(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// serveAt serves a handler at an address until the test ends, and returns the address with its port.
func serveAt(t testing.TB, handler http.Handler, address string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this test needs root, because it has a network of its own")
	}
	testutil.Command(t, "ip link set lo up")
	testutil.Command(t, "ip address replace 198.18.7.1/24 dev lo")
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return listener.Addr().String()
}

// clients serves the clients of a registry, and returns the name of the registry: localhost:PORT.
func clients(t testing.TB, r *Registry) string {
	t.Helper()
	_, port, err := net.SplitHostPort(serveAt(t, r.Clients(os.Geteuid()), "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

// part is a blob or a manifest.
type part struct {
	ocispec.Descriptor
	text []byte
}

func newPart(mediaType string, text []byte) part {
	return part{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}, text}
}

// newImage returns an image with a random layer of some size. Its manifest is last.
func newImage(t testing.TB, layer int) []part {
	t.Helper()
	text := make([]byte, layer)
	_, _ = rand.Read(text)
	parts := []part{
		newPart(ocispec.MediaTypeImageLayer, text),
		newPart(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers"}}`)),
	}
	manifest := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: parts[1].Descriptor, Layers: []ocispec.Descriptor{parts[0].Descriptor}}
	manifest.SchemaVersion = 2
	return append(parts, newPart(ocispec.MediaTypeImageManifest, marshal(t, manifest)))
}

// newIndex returns an index of images.
func newIndex(t testing.TB, images ...[]part) part {
	t.Helper()
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, image := range images {
		index.Manifests = append(index.Manifests, image[len(image)-1].Descriptor)
	}
	return newPart(ocispec.MediaTypeImageIndex, marshal(t, index))
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// push pushes the parts of an image with containerd's client.
func push(t testing.TB, name string, parts ...part) {
	t.Helper()
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost))})
	for i, one := range parts {
		reference := name
		if i < len(parts)-1 {
			reference += "@" + parts[len(parts)-1].Digest.String() // only the last one has the tag
		}
		pusher, err := resolver.Pusher(t.Context(), reference)
		if err != nil {
			t.Fatal(err)
		}
		writer, err := pusher.Push(t.Context(), one.Descriptor)
		if errdefs.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			t.Fatalf("push %s: %v", reference, err)
		}
		if err := content.Copy(t.Context(), writer, bytes.NewReader(one.text), one.Size, one.Digest); err != nil {
			t.Fatalf("push %s: %v", reference, err)
		}
		writer.Close()
	}
}

// pull pulls an image as a node with a registries.yaml does, and compares it with parts.
func pull(t testing.TB, file []byte, name string, parts ...part) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := registries.New(path, nil, func(message string) { t.Error(message) })
	if err != nil {
		t.Fatal(err)
	}
	none := func(string) (string, string, error) { return "", "", nil }
	source, err := all.Fetcher(registries.Pull{Reference: name, Credentials: none})
	if err != nil {
		t.Fatal(err)
	}
	resolved, found, err := source.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := parts[len(parts)-1]
	if found.Digest != last.Digest || found.Size != last.Size || found.MediaType != last.MediaType {
		t.Errorf("%s is %v, want %v", name, found, last.Descriptor)
	}
	fetcher, err := source.Fetcher(t.Context(), resolved)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range parts {
		reader, err := fetcher.Fetch(t.Context(), one.Descriptor)
		if err != nil {
			t.Fatalf("fetch %s: %v", one.Digest, err)
		}
		text, err := io.ReadAll(reader)
		reader.Close()
		if err != nil || !bytes.Equal(text, one.text) {
			t.Errorf("%s arrives with %d bytes, want %d: %v", one.Digest, len(text), len(one.text), err)
		}
	}
}

// mirrorOf returns the registries.yaml of a node for a registry.
func mirrorOf(t testing.TB, r *Registry, name string) []byte {
	t.Helper()
	port := netip.MustParseAddrPort("127.0.0.1:" + strings.TrimPrefix(name, "localhost:")).Port()
	file, err := Mirror(nil, port, netip.MustParseAddrPort(serveAt(t, r.Nodes(), "198.18.7.1")))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPushAndPull pushes with containerd's client, and pulls with kedge's from the nodes' side, before
// and after a restart.
func TestPushAndPull(t *testing.T) {
	folder := t.TempDir()
	first := open(t, folder)
	name := clients(t, first)
	arm, amd := newImage(t, 3<<20), newImage(t, 1000)
	index := newIndex(t, arm, amd)
	push(t, name+"/app:v1", amd...)
	push(t, name+"/team/blobs/uploads:v2", slices.Concat(arm, amd, []part{index})...)
	push(t, name+"/app:v1", arm...) // moves the tag

	for _, restarted := range []bool{false, true} {
		r := first
		if restarted {
			first.Close()
			r = open(t, folder)
			name = clients(t, r)
		}
		file := mirrorOf(t, r, name)
		pull(t, file, name+"/app:v1", arm...)
		pull(t, file, name+"/app@"+amd[2].Digest.String(), amd...)
		pull(t, file, name+"/team/blobs/uploads:v2", slices.Concat(arm, amd, []part{index})...)
	}
}

// TestRestart removes what no manifest names, and forgets a manifest that is damaged.
func TestRestart(t *testing.T) {
	folder := t.TempDir()
	r := open(t, folder)
	name := clients(t, r)
	good, bad, lost := newImage(t, 100), newImage(t, 200), newPart("", []byte("a layer without an image"))
	push(t, name+"/app:good", good...)
	push(t, name+"/app:bad", bad...)
	want(t, request(t, "POST", "http://"+name+"/v2/app/blobs/uploads/?digest="+lost.Digest.String(), lost.text), http.StatusCreated, "")
	left := request(t, "POST", "http://"+name+"/v2/app/blobs/uploads/", nil)
	want(t, left, http.StatusAccepted, "")
	want(t, request(t, "PATCH", "http://"+name+left.header.Get("Location"), []byte("half")), http.StatusAccepted, "")

	blob := func(sum digest.Digest) string { return filepath.Join(folder, "content/blobs/sha256", sum.Encoded()) }
	if err := os.Chmod(blob(bad[2].Digest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blob(bad[2].Digest), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The process is killed: nobody calls Close.
	r = open(t, folder)
	name = clients(t, r)
	pull(t, mirrorOf(t, r, name), name+"/app:good", good...)
	want(t, request(t, "GET", "http://"+name+"/v2/app/manifests/bad", nil), http.StatusNotFound, codeManifestUnknown)
	want(t, request(t, "PATCH", "http://"+name+left.header.Get("Location"), []byte("half")), http.StatusNotFound, codeUploadUnknown)
	for _, sum := range []digest.Digest{lost.Digest, bad[0].Digest, bad[2].Digest} {
		if _, err := os.Stat(blob(sum)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", sum, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "content/ingest/*")); len(left) > 0 {
		t.Errorf("%v is left of an upload", left)
	}
	push(t, name+"/app:bad", bad...) // again

	r.Close()
	if err := os.WriteFile(filepath.Join(folder, "names.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(folder); err == nil || !strings.Contains(err.Error(), "names.json is damaged") {
		t.Errorf("damaged names: %v", err)
	}
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// request sends a request with headers in pairs.
func request(t testing.TB, method, url string, body []byte, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, text}
}

// want compares the status of an answer, and the code in its body unless code is empty.
func want(t testing.TB, a answer, status int, code string) {
	t.Helper()
	var body struct {
		Errors []struct{ Code, Message string }
	}
	if code != "" && (json.Unmarshal(a.body, &body) != nil || len(body.Errors) != 1 || body.Errors[0].Code != code || body.Errors[0].Message == "") || a.status != status {
		t.Errorf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
}

// TestUploads sends blobs in all ways that the specification has.
func TestUploads(t *testing.T) {
	r := open(t, t.TempDir())
	name := clients(t, r)
	base := "http://" + name
	text := []byte("0123456789")
	sum := digest.FromBytes(text)
	start := func() string {
		t.Helper()
		a := request(t, "POST", base+"/v2/app/blobs/uploads/", nil)
		want(t, a, http.StatusAccepted, "")
		return base + a.header.Get("Location")
	}
	blob := base + "/v2/app/blobs/" + sum.String()
	want(t, request(t, "GET", blob, nil), http.StatusNotFound, codeBlobUnknown)
	want(t, request(t, "POST", base+"/v2/app/blobs/uploads/?from=other&mount="+sum.String(), nil), http.StatusAccepted, "")

	chunks := start()
	want(t, request(t, "PATCH", chunks, text[:4], "Content-Range", "0-3"), http.StatusAccepted, "")
	a := request(t, "PATCH", chunks, text[6:8], "Content-Range", "6-7")
	want(t, a, http.StatusRequestedRangeNotSatisfiable, codeUploadInvalid)
	if got := a.header.Get("Range"); got != "0-3" {
		t.Errorf("got range %s", got)
	}
	want(t, request(t, "PATCH", chunks, text[4:8], "Content-Range", "4-5"), http.StatusRequestedRangeNotSatisfiable, codeUploadInvalid)
	want(t, request(t, "PATCH", chunks, text[4:8], "Content-Range", "bytes"), http.StatusBadRequest, codeUploadInvalid)
	want(t, request(t, "PATCH", chunks, text[4:8]), http.StatusAccepted, "")
	a = request(t, "GET", chunks, nil)
	want(t, a, http.StatusNoContent, "")
	if got := a.header.Get("Range"); got != "0-7" {
		t.Errorf("got range %s", got)
	}
	want(t, request(t, "PUT", strings.Replace(chunks, "/app/", "/other/", 1)+"?digest="+sum.String(), text[8:]), http.StatusNotFound, codeUploadUnknown)
	want(t, request(t, "PUT", chunks+"?digest=sha256:0", text[8:]), http.StatusBadRequest, codeDigestInvalid)
	a = request(t, "PUT", chunks+"?digest="+sum.String(), text[8:])
	want(t, a, http.StatusCreated, "")
	if got := base + a.header.Get("Location"); got != blob {
		t.Errorf("the blob is at %s, want %s", got, blob)
	}
	want(t, request(t, "GET", chunks, nil), http.StatusNotFound, codeUploadUnknown)

	// The blob is there already, and pushed again.
	want(t, request(t, "PUT", start()+"?digest="+sum.String(), text), http.StatusCreated, "")
	want(t, request(t, "POST", base+"/v2/app/blobs/uploads?digest="+sum.String(), text), http.StatusCreated, "")
	want(t, request(t, "POST", base+"/v2/other/blobs/uploads/?from=app&mount="+sum.String(), nil), http.StatusCreated, "")
	canceled := start()
	want(t, request(t, "DELETE", canceled, nil), http.StatusNoContent, "")
	want(t, request(t, "PATCH", canceled, text), http.StatusNotFound, codeUploadUnknown)
	for name, put := range map[string]answer{
		"PUT":  request(t, "PUT", start()+"?digest="+sum.String(), text[1:]),
		"POST": request(t, "POST", base+"/v2/app/blobs/uploads/?digest="+digest.FromString("other").String(), text),
	} {
		t.Log(name)
		want(t, put, http.StatusBadRequest, codeDigestInvalid)
	}
	empty := digest.FromBytes(nil)
	want(t, request(t, "PUT", start()+"?digest="+empty.String(), nil), http.StatusCreated, "")
	want(t, request(t, "GET", base+"/v2/app/blobs/"+empty.String(), nil), http.StatusOK, "")

	a = request(t, "GET", blob, nil, "Range", "bytes=2-4")
	want(t, a, http.StatusPartialContent, "")
	if string(a.body) != "234" || a.header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("got %s, %s", a.body, a.header.Get("Content-Range"))
	}
	a = request(t, "HEAD", blob, nil)
	want(t, a, http.StatusOK, "")
	if a.header.Get("Content-Length") != "10" || a.header.Get("Docker-Content-Digest") != sum.String() || len(a.body) > 0 {
		t.Errorf("got %v", a)
	}
	want(t, request(t, "GET", blob, nil, "Range", "bytes=20-"), http.StatusRequestedRangeNotSatisfiable, "")
	want(t, request(t, "DELETE", blob, nil), http.StatusMethodNotAllowed, codeUnsupported)
}
