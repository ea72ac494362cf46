package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// background is for what must happen even if the client has gone.
var background = context.Background()

// getBlob serves a blob or a part of it.
func (r *Registry) getBlob(w http.ResponseWriter, req *http.Request, t target) error {
	info, err := r.content.Info(req.Context(), t.digest)
	if errdefs.IsNotFound(err) {
		return fault{http.StatusNotFound, codeBlobUnknown, fmt.Sprintf("this registry has no blob %s", t.digest)}
	}
	if err != nil {
		return err
	}
	reader, err := r.content.ReaderAt(req.Context(), ocispec.Descriptor{Digest: t.digest, Size: info.Size})
	if err != nil {
		return err
	}
	defer reader.Close()
	serve(w, req, t.digest, "application/octet-stream", io.NewSectionReader(reader, 0, info.Size))
	return nil
}

// serve serves content or a part of it.
func serve(w http.ResponseWriter, req *http.Request, sum digest.Digest, mediaType string, text io.ReadSeeker) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", sum.String())
	w.Header().Set("ETag", `"`+sum.String()+`"`)
	http.ServeContent(w, req, "", time.Time{}, text)
}

// listTags lists the tags of a repository in order: at most n, after the tag last.
func (r *Registry) listTags(w http.ResponseWriter, req *http.Request, t target) error {
	all, err := r.names.tags(t.repository)
	if err != nil {
		return err
	}
	query := req.URL.Query()
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearch(all, last)
		if found {
			i++
		}
		all = all[i:]
	}
	if text := query.Get("n"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return fault{http.StatusBadRequest, codeUnsupported, fmt.Sprintf("invalid number of tags %.100q: use a whole number", text)}
		}
		if int(n) < len(all) {
			all = all[:n]
			if n > 0 {
				next := url.Values{"n": {text}, "last": {all[n-1]}}
				w.Header().Set("Link", "</v2/"+t.repository+"/tags/list?"+next.Encode()+`>; rel="next"`)
			}
		}
	}
	if all == nil {
		all = []string{} // not null
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]any{"name": t.repository, "tags": all})
}

// getManifest serves a manifest by its tag or digest.
func (r *Registry) getManifest(w http.ResponseWriter, req *http.Request, t target) error {
	sum, mediaType, err := r.names.find(t)
	if err != nil {
		return err
	}
	text, err := content.ReadBlob(req.Context(), r.content, ocispec.Descriptor{Digest: sum})
	if err != nil {
		return err
	}
	serve(w, req, sum, mediaType, bytes.NewReader(text))
	return nil
}

// putManifest stores a manifest whose blobs are there.
func (r *Registry) putManifest(w http.ResponseWriter, req *http.Request, t target) error {
	from := &body{request: http.MaxBytesReader(w, req.Body, maxManifest), control: http.NewResponseController(w), space: r.checkSpace}
	text, err := io.ReadAll(from)
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return fault{http.StatusRequestEntityTooLarge, codeSizeInvalid, fmt.Sprintf("the manifest has more than %d bytes", maxManifest)}
	}
	if err != nil {
		return fault{http.StatusBadRequest, codeManifestInvalid, fmt.Sprintf("the request ended early: %v", err)}
	}
	sum := digest.FromBytes(text)
	if t.digest != "" && t.digest != sum {
		return fault{http.StatusBadRequest, codeDigestInvalid, fmt.Sprintf("the manifest has the digest %s and not %s", sum, t.digest)}
	}
	m, err := parseManifest(text)
	if err != nil {
		return fault{http.StatusBadRequest, codeManifestInvalid, err.Error()}
	}
	mediaType, err := m.kind(req.Header.Get("Content-Type"))
	if err != nil {
		return fault{http.StatusBadRequest, codeManifestInvalid, err.Error()}
	}
	for _, blob := range m.blobs() {
		info, err := r.content.Info(req.Context(), blob.Digest)
		if err != nil || info.Size != blob.Size {
			return fault{http.StatusNotFound, codeManifestBlobUnknown, fmt.Sprintf("the manifest names the blob %s of %d bytes, which was not pushed: push the image again", blob.Digest, blob.Size)}
		}
	}
	if err := r.checkSpace(); err != nil {
		return err
	}
	descriptor := ocispec.Descriptor{Digest: sum, Size: int64(len(text))}
	if err := content.WriteBlob(req.Context(), r.content, "manifest "+sum.String(), bytes.NewReader(text), descriptor); err != nil {
		return err
	}
	if err := r.names.add(t, sum, mediaType); err != nil {
		return err
	}
	created(w, t.repository, "manifests", sum)
	return nil
}

// deleteManifest takes a tag, or a manifest with its tags, from a repository. New frees the space.
func (r *Registry) deleteManifest(w http.ResponseWriter, _ *http.Request, t target) error {
	if err := r.names.remove(t); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// readManifest reads a stored manifest.
func (r *Registry) readManifest(ctx context.Context, sum digest.Digest) (*manifest, error) {
	text, err := content.ReadBlob(ctx, r.content, ocispec.Descriptor{Digest: sum})
	if err != nil {
		return nil, err
	}
	if digest.FromBytes(text) != sum {
		return nil, fmt.Errorf("manifest %s is damaged", sum)
	}
	return parseManifest(text)
}

// manifest is the part of a manifest or an index that a registry has to know.
type manifest struct {
	MediaType string               `json:"mediaType"`
	Config    *ocispec.Descriptor  `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// parseManifest returns a manifest whose blobs have valid digests.
func parseManifest(text []byte) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("the manifest is not valid JSON: %w", err)
	}
	if (m.Config == nil) == (m.Manifests == nil) {
		return nil, errors.New("the manifest must have either a config or manifests")
	}
	for _, one := range slices.Concat(m.blobs(), m.Manifests) {
		if _, err := parseDigest(one.Digest.String()); err != nil || one.Size < 0 {
			return nil, fmt.Errorf("the manifest has an invalid digest or size: %.100q, %d", one.Digest, one.Size)
		}
	}
	return &m, nil
}

// blobs returns the blobs that must be there before the manifest. Layers with addresses of their own,
// such as those of Windows, are not pushed. The manifests of an index are not needed either: a user can
// push the images of some platforms only.
func (m *manifest) blobs() []ocispec.Descriptor {
	var all []ocispec.Descriptor
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	for _, layer := range m.Layers {
		if len(layer.URLs) == 0 {
			all = append(all, layer)
		}
	}
	return all
}

// kind returns the media type of a manifest that was sent with a Content-Type.
func (m *manifest) kind(header string) (string, error) {
	mediaType, _, err := mime.ParseMediaType(header)
	if header == "" {
		mediaType, err = m.MediaType, nil
	}
	if err != nil || m.MediaType != "" && m.MediaType != mediaType {
		return "", fmt.Errorf("the manifest has the mediaType %.100q and the Content-Type %.100q: they must be the same", m.MediaType, header)
	}
	if index := m.Manifests != nil; index && images.IsIndexType(mediaType) || !index && images.IsManifestType(mediaType) {
		return mediaType, nil
	}
	return "", fmt.Errorf("unknown type of manifest %.100q: push images of OCI, or of Docker's version 2", mediaType)
}
