package peers

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// namespace is the namespace that the CRI plugin uses (internal/cri/constants).
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/constants/constants.go K8sContainerdNamespace
const namespace = "k8s.io"

// handler serves containerd's content by the read-only part of the distribution API:
// https://github.com/opencontainers/distribution-spec
type handler struct {
	content content.Store
	images  images.Store
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	path, object := splitPath(r.URL.Path)
	r = r.WithContext(namespaces.WithNamespace(r.Context(), namespace))
	if repository, ok := strings.CutSuffix(path, "/manifests"); ok {
		h.serveManifest(w, r, repository, object)
	} else if _, ok := strings.CutSuffix(path, "/blobs"); ok {
		h.serve(w, r, digest.Digest(object), "application/octet-stream")
	} else {
		http.NotFound(w, r)
	}
}

// splitPath splits a path below /v2/ at its last slash. It returns empty strings for other paths.
func splitPath(path string) (before, object string) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	i := strings.LastIndex(rest, "/")
	if !ok || i < 0 {
		return "", ""
	}
	return rest[:i], rest[i+1:]
}

// isDigest tells whether object is a digest. A tag cannot contain a colon.
func isDigest(object string) bool { return strings.Contains(object, ":") }

// serveManifest serves a manifest by its digest, or the one that a tag stands for on this node.
// The query parameter ns is the registry, as in containerd's requests to mirrors.
func (h *handler) serveManifest(w http.ResponseWriter, r *http.Request, repository, object string) {
	if isDigest(object) {
		h.serve(w, r, digest.Digest(object), "")
		return
	}
	image, err := h.images.Get(r.Context(), r.URL.Query().Get("ns")+"/"+repository+":"+object)
	if err != nil {
		refuse(w, err)
		return
	}
	h.serve(w, r, image.Target.Digest, image.Target.MediaType)
}

// serve serves content or a part of it. If kind is empty, the media type is read from the manifest.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, sum digest.Digest, kind string) {
	if err := sum.Validate(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	info, err := h.content.Info(r.Context(), sum)
	if err != nil {
		refuse(w, err)
		return
	}
	reader, err := h.content.ReaderAt(r.Context(), ocispec.Descriptor{Digest: sum, Size: info.Size})
	if err != nil {
		refuse(w, err)
		return
	}
	defer reader.Close()
	body := io.NewSectionReader(reader, 0, info.Size)
	if kind == "" {
		kind = kindOf(body)
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", sum.String())
	w.Header().Set("ETag", `"`+sum.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, body)
}

// kindOf returns the media type of a manifest. A manifest without mediaType is one of OCI's.
func kindOf(body *io.SectionReader) string {
	var manifest struct {
		MediaType string            `json:"mediaType"`
		Manifests []json.RawMessage `json:"manifests"`
	}
	text, err := io.ReadAll(io.NewSectionReader(body, 0, min(body.Size(), docker.MaxManifestSize)))
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return "application/octet-stream"
	}
	switch {
	case manifest.MediaType != "":
		return manifest.MediaType
	case manifest.Manifests != nil:
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}

// refuse answers with the status and the text of an error.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if errdefs.IsNotFound(err) {
		status = http.StatusNotFound
	}
	http.Error(w, err.Error(), status)
}
