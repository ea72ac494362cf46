// Package image builds the container images of the tests into archives that
// containerd imports, without any image tool and without a network. Tests call
// it by Busybox and Testserver.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The names that pods use. There is no such registry: a pod that is not given
// the preloaded image fails.
const (
	BusyboxName    = "kedge.test/busybox:1"
	TestserverName = "kedge.test/testserver:1"
)

// Busybox builds an image of the static busybox that `make` takes from Debian's
// package, with a link for each of its programs.
func Busybox(repository string) (archive string, err error) {
	path := filepath.Join(repository, "build", runtime.GOARCH, "busybox")
	binary, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read busybox (`make %s` gets it): %w", filepath.Join("build", runtime.GOARCH, "busybox"), err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return "", fmt.Errorf("list busybox's programs: %w", err)
	}
	files := []file{
		{name: "bin/busybox", mode: 0o755, data: binary},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{name: "root/", mode: 0o700},
		{name: "tmp/", mode: 0o1777},
	}
	for _, program := range strings.Fields(string(list)) {
		if program != "busybox" {
			files = append(files, file{name: "bin/" + program, link: "busybox"})
		}
	}
	return write(repository, BusyboxName, ocispec.ImageConfig{
		Env: []string{"PATH=/bin"},
		Cmd: []string{"sh"},
	}, files)
}

// TestserverProgram is the program in Testserver's image, for use on a host. It
// is there once Testserver was called.
func TestserverProgram(repository string) string {
	return filepath.Join(repository, "build", "test-images", "testserver")
}

// Testserver builds an image with tests/images/testserver alone.
func Testserver(repository string) (archive string, err error) {
	binary := TestserverProgram(repository)
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "./tests/images/testserver")
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build testserver: %w: %s", err, output)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", fmt.Errorf("read testserver: %w", err)
	}
	return write(repository, TestserverName, ocispec.ImageConfig{
		Env:        []string{"PATH=/"},
		Entrypoint: []string{"/testserver"},
	}, []file{
		{name: "testserver", mode: 0o755, data: data},
		{name: "tmp/", mode: 0o1777},
	})
}

// file is a file, a folder if its name ends in a slash, or a symbolic link.
type file struct {
	name string
	mode int64
	data []byte
	link string
}

// write writes an archive named by its content, unless it is there already.
func write(repository, name string, config ocispec.ImageConfig, files []file) (string, error) {
	data, err := ociArchive(name, config, files)
	if err != nil {
		return "", fmt.Errorf("make image %s: %w", name, err)
	}
	base := strings.NewReplacer("/", "-", ":", "-").Replace(name)
	path := filepath.Join(repository, "build", "test-images", fmt.Sprintf("%s-%x.tar", base, sha256.Sum256(data)))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), base)
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("write image %s: %w", name, err)
	}
	return path, nil
}

// ociArchive makes an OCI image layout of one image with one layer, as a tar
// archive. See https://github.com/opencontainers/image-spec/blob/main/image-layout.md
func ociArchive(name string, config ocispec.ImageConfig, content []file) ([]byte, error) {
	layer, err := tarball(content)
	if err != nil {
		return nil, err
	}
	layout := []file{{name: ocispec.ImageLayoutFile, mode: 0o644, data: []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)}}
	blob := func(mediaType string, data []byte) ocispec.Descriptor {
		sum := digest.FromBytes(data)
		layout = append(layout, file{name: "blobs/sha256/" + sum.Encoded(), mode: 0o644, data: data})
		return ocispec.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(data))}
	}
	jsonBlob := func(mediaType string, value any) (ocispec.Descriptor, error) {
		data, err := json.Marshal(value)
		return blob(mediaType, data), err
	}

	layerBlob := blob(ocispec.MediaTypeImageLayer, layer)
	platform := ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	configBlob, err := jsonBlob(ocispec.MediaTypeImageConfig, ocispec.Image{
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
	return tarball(append(layout, file{name: ocispec.ImageIndexFile, mode: 0o644, data: index}))
}

// tarball makes a tar archive of files owned by root and dated 1970, so that
// the same files give the same bytes.
func tarball(files []file) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Format: tar.FormatPAX}
		switch {
		case f.link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			header.Typeflag = tar.TypeDir
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
