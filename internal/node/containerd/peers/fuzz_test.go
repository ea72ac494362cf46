package peers

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// FuzzHandler sends any request of another node. The answer may only be content, or a part of it,
// that the request names by its digest or by a tag that this node has.
func FuzzHandler(f *testing.F) {
	store, err := local.NewStore(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	const blob, manifest = "0123456789", `{"mediaType":"application/test\r\nSet-Cookie: a=b"}`
	for _, data := range []string{blob, manifest} {
		d := ocispec.Descriptor{Digest: digest.FromString(data), Size: int64(len(data))}
		if err := content.WriteBlob(f.Context(), store, data, bytes.NewReader([]byte(data)), d); err != nil {
			f.Fatal(err)
		}
	}
	h := &handler{content: store, images: names{targets: map[string]ocispec.Descriptor{"registry.test/app:1": {Digest: digest.FromString(manifest)}}}}
	f.Add("GET", "/v2/app/manifests/1", "ns=registry.test", "")
	f.Add("HEAD", "/v2/app/manifests/"+digest.FromString(manifest).String(), "", "")
	f.Add("GET", "/v2/app/blobs/"+digest.FromString(blob).String(), "", "bytes=2-3,-1,9-")
	f.Add("GET", "/v2/app/blobs/sha256:../../../../etc/passwd", "", "")
	f.Add("GET", "/v2/../blobs/sha512:00", "ns=%00&ns=b", "bytes=99999999999999999999-")
	f.Add("DELETE", "/v2/app/blobs/"+digest.FromString(blob).String(), "", "")
	f.Fuzz(func(t *testing.T, method, path, query, part string) {
		request := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Range": {part}}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, request.WithContext(t.Context()))
		if recorder.Code >= http.StatusMultipleChoices {
			return
		}
		body, given := recorder.Body.String(), recorder.Header().Get("Docker-Content-Digest")
		asked := path[strings.LastIndex(path, "/")+1:]
		if method != http.MethodGet && method != http.MethodHead || given != asked && asked != "1" {
			t.Errorf("%s %q is answered by %s", method, path, given)
		}
		if multipart := strings.HasPrefix(recorder.Header().Get("Content-Type"), "multipart/"); !multipart && !strings.Contains(blob, body) && !strings.Contains(manifest, body) {
			t.Errorf("%s %q has the body %q", method, path, body)
		}
	})
}
