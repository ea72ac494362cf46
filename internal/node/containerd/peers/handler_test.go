package peers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// names is an images.Store that implements only Get.
type names struct {
	images.Store
	targets map[string]ocispec.Descriptor
}

func (n names) Get(_ context.Context, name string) (images.Image, error) {
	target, ok := n.targets[name]
	if !ok {
		return images.Image{}, fmt.Errorf("image %s: %w", name, errdefs.ErrNotFound)
	}
	return images.Image{Name: name, Target: target}, nil
}

func TestHandler(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	add := func(data string) ocispec.Descriptor {
		t.Helper()
		d := ocispec.Descriptor{Digest: digest.FromString(data), Size: int64(len(data)), MediaType: "application/test"}
		if err := content.WriteBlob(t.Context(), store, data, bytes.NewReader([]byte(data)), d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	const (
		says  = `{"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}`
		image = `{"schemaVersion":2,"layers":[]}`
		index = `{"schemaVersion":2,"manifests":[]}`
	)
	blob, manifest := add("0123456789"), add(says)
	h := &handler{content: store, images: names{targets: map[string]ocispec.Descriptor{"registry.test:5000/team/blobs/app:1": manifest}}}
	for _, test := range []struct {
		method, path, part string
		status             int
		body, kind         string
	}{
		{"GET", "/v2/team/blobs/app/manifests/1?ns=registry.test:5000", "", 200, says, "application/test"},
		{"HEAD", "/v2/team/blobs/app/manifests/1?ns=registry.test:5000", "", 200, "", "application/test"},
		{"GET", "/v2/team/blobs/app/manifests/2?ns=registry.test:5000", "", 404, "", ""},
		{"GET", "/v2/team/blobs/app/manifests/1?ns=other.test", "", 404, "", ""},
		{"GET", "/v2/a/manifests/" + manifest.Digest.String(), "", 200, says, "application/vnd.docker.distribution.manifest.v2+json"},
		{"GET", "/v2/a/manifests/" + add(image).Digest.String(), "", 200, image, ocispec.MediaTypeImageManifest},
		{"GET", "/v2/a/manifests/" + add(index).Digest.String(), "", 200, index, ocispec.MediaTypeImageIndex},
		{"GET", "/v2/a/blobs/" + blob.Digest.String(), "", 200, "0123456789", "application/octet-stream"},
		{"GET", "/v2/a/blobs/" + blob.Digest.String(), "bytes=4-", 206, "456789", "application/octet-stream"},
		{"GET", "/v2/a/blobs/" + digest.FromString("nothing").String(), "", 404, "", ""},
		{"GET", "/v2/a/blobs/sha256:../../x", "", 404, "", ""},
		{"GET", "/v2/a/blobs/sha256:1", "", 400, "", ""},
		{"GET", "/v2/", "", 404, "", ""},
		{"GET", "/v2/a/tags/list", "", 404, "", ""},
		{"PUT", "/v2/a/manifests/1", "", 405, "", ""},
		{"DELETE", "/v2/a/blobs/" + blob.Digest.String(), "", 405, "", ""},
	} {
		request := httptest.NewRequest(test.method, test.path, nil)
		if test.part != "" {
			request.Header.Set("Range", test.part)
		}
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, request)
		body, _ := io.ReadAll(recorder.Body)
		if recorder.Code != test.status {
			t.Errorf("%s %s: status %d, want %d: %s", test.method, test.path, recorder.Code, test.status, body)
		}
		if test.status >= http.StatusBadRequest {
			continue
		}
		if string(body) != test.body || recorder.Header().Get("Content-Type") != test.kind || recorder.Header().Get("Docker-Content-Digest") == "" {
			t.Errorf("%s %s: got %q, %v", test.method, test.path, body, recorder.Header())
		}
	}
}
