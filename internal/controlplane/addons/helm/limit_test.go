package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// TestEndless fetches charts from servers that send without end, in each place where
// Helm reads an answer into memory.
func TestEndless(t *testing.T) {
	var sent atomic.Int64
	endless := func(w io.Writer) {
		block := bytes.Repeat([]byte("#"), 1<<20)
		for {
			n, err := w.Write(block)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
	// A gzip file may consist of several others.
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(make([]byte, 16<<20)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"name": "web", "version": "1.0.0"}`)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(config))
	manifest := fmt.Appendf(nil, `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": "%s", "size": %d},
		"layers": [{"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "digest": "sha256:%064d", "size": %d}]}`, digest, len(config), 1, int64(1)<<60)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good/index.yaml":
			_, _ = w.Write([]byte("apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 1.0.0, urls: [web.tgz]}]}"))
		case "/compressed/index.yaml":
			w.Header().Set("Content-Encoding", "gzip")
			for range 64 { // a GiB for a client that unpacks it
				if _, err := w.Write(compressed.Bytes()); err != nil {
					return
				}
			}
		case "/v2/a/web/manifests/1.0.0":
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			_, _ = w.Write(manifest)
		case "/v2/a/web/blobs/" + digest:
			_, _ = w.Write(config)
		case "/moved.tgz":
			http.Redirect(w, r, "/good/web.tgz", http.StatusFound)
		default:
			if r.Method == http.MethodHead { // what it says is asked for then
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				w.Header().Set("Content-Length", "1000000000000")
				w.Header().Set("Docker-Content-Digest", digest)
				return
			}
			endless(w)
		}
	}))
	defer server.Close()
	registry := "oci://" + strings.TrimPrefix(server.URL, "http://")
	c := &controller{Config: Config{Charts: t.TempDir(), Server: "server-1"}, api: fake.NewClientset()}
	for name, test := range map[string]struct {
		spec chartSpec
		want string
	}{
		"an index":             {chartSpec{Chart: "web", Repo: server.URL + "/endless"}, "sent more than 32 MiB"},
		"a compressed index":   {chartSpec{Chart: "web", Repo: server.URL + "/compressed"}, "index.yaml"},
		"a chart of an index":  {chartSpec{Chart: "web", Repo: server.URL + "/good"}, "sent more than 32 MiB"},
		"a chart":              {chartSpec{Chart: server.URL + "/web.tgz"}, "sent more than 32 MiB"},
		"a redirect":           {chartSpec{Chart: server.URL + "/moved.tgz"}, "sent more than 32 MiB"},
		"a chart of OCI":       {chartSpec{Chart: registry + "/a/web", Version: "1.0.0", PlainHTTP: true}, "sent more than 32 MiB"},
		"a manifest of OCI":    {chartSpec{Chart: registry + "/a/other", Version: "1.0.0", PlainHTTP: true}, "a/other"},
		"a list of OCI's tags": {chartSpec{Chart: registry + "/a/web", PlainHTTP: true}, "a/web"},
	} {
		t.Run(name, func(t *testing.T) {
			sent.Store(0)
			_, err := c.fetch(t.Context(), &helmChart{Spec: test.spec})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			// The kernel's buffers take some bytes that the client never reads.
			if taken := sent.Load(); taken > maxFetch+(16<<20) {
				t.Errorf("the server sent %d bytes, want at most 32 MiB and what the kernel buffers", taken)
			}
		})
	}
}

// TestChartBomb has an archive that is small while compressed, and large when it
// is unpacked.
func TestChartBomb(t *testing.T) {
	content := packed(t, tar.Header{Name: "web/files/large", Mode: 0o644, Size: maxChart})
	c := &controller{Config: Config{Charts: t.TempDir(), Server: "server-1"}, api: fake.NewClientset()}
	_, err := c.fetch(t.Context(), &helmChart{Spec: chartSpec{ChartContent: content}})
	if err == nil || !strings.Contains(err.Error(), "is larger than 32 MiB") {
		t.Errorf("got %v", err)
	}
}

// TestChartLinks has an archive with entries that point outside of it: none of the
// server's files may get into the chart.
func TestChartLinks(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("of the server"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &controller{Config: Config{Charts: t.TempDir(), Server: "server-1"}, api: fake.NewClientset()}
	for name, header := range map[string]tar.Header{
		"a symbolic link":   {Name: "web/templates/link.yaml", Typeflag: tar.TypeSymlink, Linkname: outside},
		"a hard link":       {Name: "web/templates/link.yaml", Typeflag: tar.TypeLink, Linkname: outside},
		"a way up":          {Name: "web/../../templates/link.yaml", Typeflag: tar.TypeReg},
		"a path from above": {Name: outside, Typeflag: tar.TypeReg},
	} {
		t.Run(name, func(t *testing.T) {
			chart, err := c.fetch(t.Context(), &helmChart{Spec: chartSpec{ChartContent: packed(t, header)}})
			if err != nil {
				return // it is refused
			}
			for _, file := range chart.Raw {
				if strings.Contains(string(file.Data), "of the server") {
					t.Errorf("%s has %q", file.Name, file.Data)
				}
			}
		})
	}
}

// packed returns the archive of a chart with one more entry, in base64.
func packed(t *testing.T, more tar.Header) string {
	t.Helper()
	const about = "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	files := tar.NewWriter(compressed)
	err := files.WriteHeader(&tar.Header{Name: "web/Chart.yaml", Mode: 0o644, Size: int64(len(about))})
	if err == nil {
		_, err = files.Write([]byte(about))
	}
	if err == nil {
		err = files.WriteHeader(&more)
	}
	if err == nil {
		// The content is as many zeros as the header says.
		_, err = io.CopyN(files, zeros{}, more.Size)
	}
	if err == nil {
		err = errors.Join(files.Close(), compressed.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(archive.Bytes())
}

// zeros is an endless file of them.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
