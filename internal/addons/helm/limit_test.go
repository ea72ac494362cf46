package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
)

// TestEndless fetches charts from servers that send until nobody listens any more, in
// each place where Helm reads an answer into memory.
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
			compressed := gzip.NewWriter(w)
			for range 64 { // a GiB for a client that unpacks it
				if _, err := compressed.Write(make([]byte, 16<<20)); err != nil {
					return
				}
			}
			_ = compressed.Close()
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
			// What the kernel's buffers take was received by nobody.
			if taken := sent.Load(); taken > maxFetch+(16<<20) {
				t.Errorf("%d bytes were taken", taken)
			}
		})
	}
}

// TestChartBomb has an archive that is small, and large when it is unpacked.
func TestChartBomb(t *testing.T) {
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	files := tar.NewWriter(compressed)
	for _, file := range []struct {
		name string
		data []byte
	}{
		{"web/Chart.yaml", []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")},
		{"web/files/large", make([]byte, maxChart)},
	} {
		if err := files.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write(file.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	c := &controller{Config: Config{Charts: t.TempDir(), Server: "server-1"}, api: fake.NewClientset()}
	_, err := c.fetch(t.Context(), &helmChart{Spec: chartSpec{ChartContent: base64.StdEncoding.EncodeToString(archive.Bytes())}})
	if err == nil || !strings.Contains(err.Error(), "more than 32 MiB when it is unpacked") {
		t.Errorf("got %v", err)
	}
}
