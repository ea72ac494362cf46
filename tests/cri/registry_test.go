package cri

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// registry serves images that are archives on this machine. It stands in for all registries: the name of an image does not
// contain that of its registry.
type registry struct {
	blobs map[digest.Digest][]byte
	// manifests has the manifest of each image NAME:TAG.
	manifests map[string]digest.Digest
}

// add adds the image of an archive under names.
func (r *registry) add(archive string, names ...string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	var index ocispec.Index
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		switch {
		case header.Name == ocispec.ImageIndexFile:
			if err := json.Unmarshal(content, &index); err != nil {
				return fmt.Errorf("read %s: %w", archive, err)
			}
		case strings.HasPrefix(header.Name, ocispec.ImageBlobsDir+"/"):
			r.blobs[digest.FromBytes(content)] = content
		}
	}
	for _, name := range names {
		r.manifests[name] = index.Manifests[0].Digest
	}
	return nil
}

// ServeHTTP implements http.Handler, for what pulls of images need of the distribution specification.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	place, reference := path.Split(req.URL.Path)
	sum, kind := digest.Digest(reference), "application/octet-stream"
	if name, ok := strings.CutSuffix(strings.TrimPrefix(place, "/v2/"), "/manifests/"); ok {
		kind = ocispec.MediaTypeImageManifest
		if tagged, ok := r.manifests[name+":"+reference]; ok {
			sum = tagged
		}
	}
	content, ok := r.blobs[sum]
	if !ok && req.URL.Path != "/v2/" {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", sum.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if req.Method == http.MethodGet {
		_, _ = io.Copy(w, bytes.NewReader(content)) // the client may be gone
	}
}
