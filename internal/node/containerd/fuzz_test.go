package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobLabels keeps the labels of a content store.
type blobLabels map[digest.Digest]map[string]string

func (l blobLabels) Get(d digest.Digest) (map[string]string, error) { return l[d], nil }

func (l blobLabels) Set(d digest.Digest, labels map[string]string) error {
	l[d] = labels
	return nil
}

func (l blobLabels) Update(d digest.Digest, labels map[string]string) (map[string]string, error) {
	all := maps.Clone(l[d])
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, labels)
	l[d] = all
	return all, nil
}

// FuzzArchive reads anything as an archive of images, as importStream has containerd do. All of it
// goes into the content store, and the store does not grow by more than the archive has.
func FuzzArchive(f *testing.F) {
	docker, oci := dockerArchive(f, "app", []byte("binary")), ociArchive(f, "registry.test/app:1", []byte("binary"))
	f.Add(docker)
	f.Add(oci)
	f.Add(gzipped(f, oci))
	f.Add(docker[:len(docker)-1025])
	f.Add(tarOf(f, entry{"manifest.json", 0o644, []byte(`[null,{"Config":"../../config.json","RepoTags":[":"],"Layers":[null]}]`)}))
	f.Add(tarOf(f, entry{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, entry{"index.json", 0o644, []byte(`{"manifests":[{"digest":"sha256:../../x","size":-1}]}`)}))
	var linked bytes.Buffer
	w := tar.NewWriter(&linked)
	for _, header := range []tar.Header{
		{Name: "a/layer.tar", Linkname: "../../../etc/passwd", Typeflag: tar.TypeSymlink},
		{Name: "b/layer.tar", Linkname: "../a/layer.tar", Typeflag: tar.TypeSymlink},
		{Name: "blobs/sha256/../../../x", Typeflag: tar.TypeReg},
		{Name: "c", Linkname: "c", Typeflag: tar.TypeLink},
	} {
		if err := w.WriteHeader(&header); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(linked.Bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		parent := t.TempDir()
		root := filepath.Join(parent, "content")
		store, err := local.NewLabeledStore(root, blobLabels{})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := compression.DecompressStream(bytes.NewReader(file))
		if err != nil {
			return
		}
		defer stream.Close()
		unpacked := &counted{reader: io.LimitReader(stream, 16<<20)}
		ctx := namespaces.WithNamespace(t.Context(), namespace)
		index, err := archive.ImportIndex(ctx, store, unpacked)
		if err == nil {
			walk(ctx, t, store, index)
		}
		stored := int64(0)
		err = filepath.WalkDir(parent, func(path string, file fs.DirEntry, err error) error {
			if err != nil || file.IsDir() {
				return err
			}
			info, err := file.Info()
			if err != nil {
				return err
			}
			if stored += info.Size(); !strings.HasPrefix(path, root+"/") || !info.Mode().IsRegular() {
				t.Errorf("the archive makes %s", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// The manifests of a Docker archive are made from the archive and stored in addition.
		if stored > 4*unpacked.size+1<<16 {
			t.Errorf("an archive of %d bytes makes %d", unpacked.size, stored)
		}
	})
}

// walk reads what an index refers to, as an import does.
func walk(ctx context.Context, t *testing.T, store content.Store, index ocispec.Descriptor) {
	blob, err := content.ReadBlob(ctx, store, index)
	if err != nil {
		t.Fatalf("the index is not there: %v", err)
	}
	var list ocispec.Index
	if json.Unmarshal(blob, &list) != nil {
		return
	}
	for _, manifest := range list.Manifests {
		checkName(t, manifest.Annotations[images.AnnotationImageName])
	}
	steps := 0
	handler := images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if steps++; steps > 1000 {
			return nil, images.ErrStopHandler
		}
		return images.Children(ctx, store, d)
	})
	_ = images.Walk(ctx, handler, index)
}

// checkName fails the test unless an image gets a full name or none.
func checkName(t *testing.T, name string) {
	t.Helper()
	full := fullName(name)
	if full == "" {
		return
	}
	again, err := reference.ParseDockerRef(full)
	if err != nil || again.String() != full || reference.IsNameOnly(again) || fullName(full) != full {
		t.Errorf("the image %q is called %q, which is %v: %v", name, full, again, err)
	}
}

// counted counts what is read.
type counted struct {
	reader io.Reader
	size   int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.size += int64(n)
	return n, err
}

// FuzzName gives an image of an archive any name.
func FuzzName(f *testing.F) {
	for _, name := range []string{"app", "app:1", "registry.test:5000/app", "docker.io/app@sha256:" + strings.Repeat("0", 64), "a/b:c@d", "Registry.test/App:1", ":", "@", "//a"} {
		f.Add(name)
	}
	f.Fuzz(checkName)
}

// FuzzList reads anything as a list of images to pull.
func FuzzList(f *testing.F) {
	f.Add([]byte("# what to pull\nregistry.test/app:1 # the first\n\nbusybox\nnot a name\r\n"))
	f.Add([]byte("app@sha256:0\n\xff\x00"))
	f.Add([]byte("a\u2028b"))
	p := &preloader{cfg: Config{ImagesDir: f.TempDir()}}
	file := filepath.Join(p.cfg.ImagesDir, "list"+listSuffix)
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		names, err := p.names()
		for _, name := range names {
			checkName(t, name)
		}
		if lines := bytes.Count(text, []byte("\n")) + 1; len(names) > lines {
			t.Errorf("%d lines have %d names: %v", lines, len(names), err)
		}
	})
}
