// Command pauseimage writes an OCI image archive with one executable, pause,
// without any image tool. The same executable gives the same bytes.
//
//	pauseimage GOARCH EXECUTABLE ARCHIVE
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/internal/assets"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: pauseimage GOARCH EXECUTABLE ARCHIVE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "pauseimage:", err)
		os.Exit(1)
	}
}

func run(arch, executable, archive string) error {
	pause, err := os.ReadFile(executable)
	if err != nil {
		return err
	}
	layer, err := tarball(file{"pause", 0o755, pause})
	if err != nil {
		return err
	}
	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	if arch == "arm" {
		platform.Variant = "v7"
	}

	files := []file{{ocispec.ImageLayoutFile, 0o644, []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)}}
	blob := func(mediaType string, data []byte) ocispec.Descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		files = append(files, file{"blobs/sha256/" + sum, 0o644, data})
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.NewDigestFromEncoded(digest.SHA256, sum), Size: int64(len(data))}
	}

	layerBlob := blob(ocispec.MediaTypeImageLayer, layer)
	created := time.Unix(0, 0).UTC()
	config, err := json.Marshal(ocispec.Image{
		Created:  &created,
		Platform: platform,
		// Nobody, as upstream's: the namespaces need no rights to be held open.
		Config: ocispec.ImageConfig{User: "65535:65535", Entrypoint: []string{"/pause"}},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerBlob.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    blob(ocispec.MediaTypeImageConfig, config),
		Layers:    []ocispec.Descriptor{layerBlob},
	})
	if err != nil {
		return err
	}
	image := blob(ocispec.MediaTypeImageManifest, manifest)
	image.Platform = &platform
	image.Annotations = map[string]string{
		"io.containerd.image.name": assets.PauseImage,
		ocispec.AnnotationRefName:  assets.PauseImage,
	}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{image},
	})
	if err != nil {
		return err
	}
	files = append(files, file{ocispec.ImageIndexFile, 0o644, index})

	data, err := tarball(files...)
	if err != nil {
		return err
	}
	return os.WriteFile(archive, data, 0o644)
}

type file struct {
	name string
	mode int64
	data []byte
}

// tarball makes a tar archive of files owned by root and dated 1970.
func tarball(files ...file) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
