package containerd

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// newRoot makes the files of a containerd that has images.
func newRoot(t *testing.T, names ...string) Stopped {
	t.Helper()
	root := t.TempDir()
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	store, err := local.NewStore(filepath.Join(root, contentFolder))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, metadataFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	opened, err := bolt.Open(file, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	db := metadata.NewDB(opened, store, nil)
	if err := db.Init(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		index, err := archive.ImportIndex(ctx, db.ContentStore(), bytes.NewReader(ociArchive(t, name, []byte(name))))
		if err != nil {
			t.Fatal(err)
		}
		target := manifestOf(t, ctx, db, index)
		for _, called := range []string{name, "sha256:" + digestOf([]byte(name))} {
			if _, err := metadata.NewImageStore(db).Create(ctx, images.Image{Name: called, Target: target}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return Stopped(root)
}

// manifestOf returns the only manifest of an index.
func manifestOf(t *testing.T, ctx context.Context, db *metadata.DB, index ocispec.Descriptor) ocispec.Descriptor {
	t.Helper()
	found, err := images.Children(ctx, db.ContentStore(), index)
	if err != nil || len(found) != 1 {
		t.Fatalf("read index: %v, %v", found, err)
	}
	found[0].Annotations = nil
	return found[0]
}

// The images of a containerd that does not run become an archive that can be imported. Its
// files stay as they are.
func TestStopped(t *testing.T) {
	const whole, broken = "registry.test/whole:1", "registry.test/broken:1"
	s := newRoot(t, whole, broken)
	layer := tarOf(t, entry{"main", 0o755, []byte(broken)})
	if err := os.Remove(filepath.Join(string(s), contentFolder, "blobs/sha256", digestOf(layer))); err != nil {
		t.Fatal(err)
	}
	before := listing(t, string(s))
	complete, missing, err := s.Images(t.Context())
	if err != nil || len(complete) != 1 || complete[0].Name != whole || !slices.Equal(missing, []string{broken}) {
		t.Fatalf("complete are %v, missing %v: %v", complete, missing, err)
	}
	var out bytes.Buffer
	if err := s.Export(t.Context(), complete, &out); err != nil {
		t.Fatal(err)
	}
	if after := listing(t, string(s)); after != before {
		t.Errorf("the files are %s, were %s", after, before)
	}

	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	index, err := archive.ImportIndex(ctx, store, &out)
	if err != nil {
		t.Fatal(err)
	}
	found, err := images.Children(ctx, store, index)
	if err != nil || len(found) != 1 || found[0].Annotations[images.AnnotationImageName] != whole {
		t.Errorf("the archive has %v, %v", found, err)
	}
	if _, err := store.Info(ctx, digest.Digest("sha256:"+digestOf(tarOf(t, entry{"main", 0o755, []byte(whole)})))); err != nil {
		t.Errorf("the archive lacks the layer: %v", err)
	}

	if complete, missing, err := Stopped(t.TempDir()).Images(t.Context()); len(complete)+len(missing) > 0 || err != nil {
		t.Errorf("without a containerd there are %v, %v, %v", complete, missing, err)
	}
}

func listing(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
