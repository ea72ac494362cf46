// Package ociimage makes archives of container images that containerd can import,
// without an image tool. The same files give the same bytes. The build calls it
// for the pause image, and tests/harness/image for the images of the tests.
package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is a file, a folder if its name ends in a slash, or a symbolic link.
type File struct {
	Name string
	Mode int64
	Data []byte
	Link string
}

// Archive makes an OCI image layout of one image with one layer, as a tar
// archive. See https://github.com/opencontainers/image-spec/blob/main/image-layout.md
func Archive(name, arch string, config ocispec.ImageConfig, content []File) ([]byte, error) {
	layer, err := tarball(content)
	if err != nil {
		return nil, err
	}
	layout := []File{{Name: ocispec.ImageLayoutFile, Mode: 0o644, Data: []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)}}
	blob := func(mediaType string, data []byte) ocispec.Descriptor {
		sum := digest.FromBytes(data)
		layout = append(layout, File{Name: "blobs/sha256/" + sum.Encoded(), Mode: 0o644, Data: data})
		return ocispec.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(data))}
	}
	jsonBlob := func(mediaType string, value any) (ocispec.Descriptor, error) {
		data, err := json.Marshal(value)
		return blob(mediaType, data), err
	}

	platform := ocispec.Platform{OS: "linux", Architecture: arch}
	if arch == "arm" {
		platform.Variant = "v7"
	}
	created := time.Unix(0, 0).UTC()
	layerBlob := blob(ocispec.MediaTypeImageLayer, layer)
	configBlob, err := jsonBlob(ocispec.MediaTypeImageConfig, ocispec.Image{
		Created:  &created,
		Platform: platform,
		Config:   config,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerBlob.Digest}},
	})
	if err != nil {
		return nil, err
	}
	image, err := jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    configBlob,
		Layers:    []ocispec.Descriptor{layerBlob},
	})
	if err != nil {
		return nil, err
	}
	image.Platform = &platform
	image.Annotations = map[string]string{"io.containerd.image.name": name, ocispec.AnnotationRefName: name}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{image},
	})
	if err != nil {
		return nil, err
	}
	return tarball(append(layout, File{Name: ocispec.ImageIndexFile, Mode: 0o644, Data: index}))
}

// tarball makes a tar archive of files owned by root and dated 1970.
func tarball(files []File) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Data)), Format: tar.FormatPAX}
		switch {
		case f.Link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
		case strings.HasSuffix(f.Name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
