package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// imageNameAnnotation holds an image's full name in an archive's index:
	// github.com/containerd/containerd/v2/core/images, annotations.go.
	//upstream:relies-on github.com/containerd/containerd/v2/core/images/annotations.go AnnotationImageName
	imageNameAnnotation = "io.containerd.image.name"
	blobFolder          = ocispec.ImageBlobsDir + "/sha256/"
)

// section is where in a file a blob is.
type section struct {
	file         string
	offset, size int64
}

// read hands the blob to f.
func (s section) read(f func(io.ReadSeeker) error) error {
	file, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer file.Close()
	return f(io.NewSectionReader(file, s.offset, s.size))
}

// readArchive returns the index of an OCI archive, and where its blobs are.
func readArchive(path string) (index ocispec.Index, blobs map[digest.Digest]section, err error) {
	file, err := os.Open(path)
	if err != nil {
		return index, nil, err
	}
	defer file.Close()
	blobs = map[digest.Digest]section{}
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return index, blobs, nil
		}
		if err != nil {
			return index, nil, fmt.Errorf("read %s: %w", path, err)
		}
		if sum, ok := strings.CutPrefix(header.Name, blobFolder); ok {
			offset, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return index, nil, err
			}
			blobs[digest.NewDigestFromEncoded(digest.SHA256, sum)] = section{path, offset, header.Size}
		} else if header.Name == ocispec.ImageIndexFile {
			if err := json.NewDecoder(reader).Decode(&index); err != nil {
				return index, nil, fmt.Errorf("read the index of %s: %w", path, err)
			}
		}
	}
}

// unpack lays an archive's first image out as
// k8s.io/kubernetes/test/images/agnhost/fakeregistryserver wants it: see
// prepare_registry.sh there.
//
//upstream:relies-on k8s.io/kubernetes/test/images/agnhost/fakeregistryserver/prepare_registry.sh
//upstream:relies-on k8s.io/kubernetes/test/images/agnhost/fakeregistryserver/registryserver.go
func unpack(archive, name, tag, dir string) error {
	index, blobs, err := readArchive(archive)
	if err != nil {
		return err
	}
	if len(index.Manifests) == 0 {
		return fmt.Errorf("%s holds no image", archive)
	}
	put := func(kind string, sum digest.Digest, data []byte) error {
		path := filepath.Join(dir, name, kind, "sha256", sum.Encoded()[:2], sum.Encoded(), "data")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o644)
	}
	for sum, blob := range blobs {
		kind := "blobs"
		if sum == index.Manifests[0].Digest {
			kind = "manifests"
		}
		err := blob.read(func(r io.ReadSeeker) error {
			data, err := io.ReadAll(r)
			return errors.Join(err, put(kind, sum, data))
		})
		if err != nil {
			return err
		}
	}
	index.Manifests = index.Manifests[:1]
	index.Manifests[0].Annotations = nil
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	sum := digest.FromBytes(list)
	if err := put("manifests", sum, list); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name, "manifests", tag), []byte(sum.String()+"\n"), 0o644)
}

// registry answers pulls.
type registry struct {
	blobs map[digest.Digest]section
	tags  map[string]digest.Digest // of manifests, by NAME:TAG without the host
}

func newRegistry(dir string) (*registry, error) {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return nil, err
	}
	r := &registry{blobs: map[digest.Digest]section{}, tags: map[string]digest.Digest{}}
	for _, archive := range archives {
		index, blobs, err := readArchive(archive)
		if err != nil {
			return nil, err
		}
		for sum, blob := range blobs {
			r.blobs[sum] = blob
		}
		for _, manifest := range index.Manifests {
			_, name, _ := strings.Cut(manifest.Annotations[imageNameAnnotation], "/")
			r.tags[name] = manifest.Digest
		}
	}
	return r, nil
}

// handler serves the part of the OCI distribution API that pulling uses:
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md. All
// images are public, whatever host their names have.
func (r *registry) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		path, ok := strings.CutPrefix(request.URL.Path, "/v2/")
		if !ok || (request.Method != http.MethodGet && request.Method != http.MethodHead) {
			http.NotFound(w, request)
			return
		}
		if path == "" {
			return // yes, this is a registry
		}
		kind, reference := filepath.Split(path)
		sum, mediaType := digest.Digest(reference), "application/octet-stream"
		if name, ok := strings.CutSuffix(kind, "/manifests/"); ok {
			mediaType = ocispec.MediaTypeImageManifest
			if tagged, ok := r.tags[name+":"+reference]; ok {
				sum = tagged
			}
		}
		blob, ok := r.blobs[sum]
		if !ok {
			http.NotFound(w, request)
			return
		}
		err := blob.read(func(content io.ReadSeeker) error {
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Docker-Content-Digest", sum.String())
			http.ServeContent(w, request, "", time.Time{}, content)
			return nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}
