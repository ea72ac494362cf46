package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// searchPath is what the images of the tests find in their environment.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// imageSpec is one image to build.
type imageSpec struct {
	Ref    string              `json:"ref"`    // full name with tag
	Layers []string            `json:"layers"` // folders, lowest first
	Config ocispec.ImageConfig `json:"config"`
}

// build writes the images of a specification into one archive, which holds each
// layer once. The same folders give the same bytes.
func build(specFile, archive string) error {
	data, err := os.ReadFile(specFile)
	if err != nil {
		return err
	}
	var images []imageSpec
	if err := json.Unmarshal(data, &images); err != nil {
		return fmt.Errorf("read %s: %w", specFile, err)
	}
	file, err := os.Create(archive + ".tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	err = writeLayout(file, images)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", archive, err)
	}
	return os.Rename(file.Name(), archive)
}

// layout is an OCI image layout that is being written as a tar archive. See
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
type layout struct {
	tar   *tar.Writer
	blobs map[digest.Digest]bool
}

func writeLayout(w io.Writer, images []imageSpec) error {
	out := &layout{tar: tar.NewWriter(w), blobs: map[digest.Digest]bool{}}
	version := fmt.Sprintf(`{"imageLayoutVersion":"%s"}`, ocispec.ImageLayoutVersion)
	if err := out.file(ocispec.ImageLayoutFile, []byte(version)); err != nil {
		return err
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	layers := map[string]ocispec.Descriptor{}
	for _, image := range images {
		for _, folder := range image.Layers {
			if _, done := layers[folder]; done {
				continue
			}
			packed, err := pack(folder)
			if err != nil {
				return fmt.Errorf("pack %s: %w", folder, err)
			}
			if layers[folder], err = out.blob(ocispec.MediaTypeImageLayer, packed); err != nil {
				return err
			}
		}
		manifest, err := out.image(image, layers)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Ref, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := out.file(ocispec.ImageIndexFile, data); err != nil {
		return err
	}
	return out.tar.Close()
}

// image writes an image whose layers are written already.
func (l *layout) image(image imageSpec, layers map[string]ocispec.Descriptor) (ocispec.Descriptor, error) {
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	config := ocispec.Image{Platform: platform, Config: image.Config, RootFS: ocispec.RootFS{Type: "layers"}}
	config.Config.Env = append([]string{searchPath}, image.Config.Env...)
	// Images that differ in nothing but the tag must not be one image.
	config.Config.Labels = map[string]string{ocispec.AnnotationRefName: image.Ref}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, folder := range image.Layers {
		manifest.Layers = append(manifest.Layers, layers[folder])
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layers[folder].Digest)
	}
	var err error
	if manifest.Config, err = l.json(ocispec.MediaTypeImageConfig, config); err != nil {
		return ocispec.Descriptor{}, err
	}
	descriptor, err := l.json(ocispec.MediaTypeImageManifest, manifest)
	descriptor.Platform = &platform
	descriptor.Annotations = map[string]string{
		imageNameAnnotation:       image.Ref,
		ocispec.AnnotationRefName: image.Ref[strings.LastIndex(image.Ref, ":")+1:],
	}
	return descriptor, err
}

func (l *layout) json(mediaType string, value any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return l.blob(mediaType, data)
}

func (l *layout) blob(mediaType string, data []byte) (ocispec.Descriptor, error) {
	sum := digest.FromBytes(data)
	descriptor := ocispec.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(data))}
	if l.blobs[sum] {
		return descriptor, nil
	}
	l.blobs[sum] = true
	return descriptor, l.file(blobFolder+sum.Encoded(), data)
}

func (l *layout) file(name string, data []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
	if err := l.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err := l.tar.Write(data)
	return err
}

// pack makes a layer out of a folder. Nothing of this machine but the files'
// content and mode gets into it: the owner is root and the date 1970.
func pack(folder string) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			name += "/"
		}
		// The mode as the kernel has it: with set-uid, set-gid and sticky.
		mode := int64(info.Sys().(*syscall.Stat_t).Mode & 0o7777)
		header = &tar.Header{
			Typeflag: header.Typeflag, Name: name, Linkname: header.Linkname, Mode: mode,
			Size: header.Size, ModTime: time.Unix(0, 0),
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		return copyInto(w, path)
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func copyInto(w io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}
