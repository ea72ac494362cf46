package place

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil/s3"
)

// inBucket returns a place in a bucket of the server.
func inBucket(t *testing.T, store *s3.Server) Place {
	t.Helper()
	server := httptest.NewServer(store)
	t.Cleanup(server.Close)
	p, err := Open(t.Context(), "s3://"+strings.TrimPrefix(server.URL, "http://")+"/"+store.Bucket+"/one/two",
		config.S3{Insecure: true, AccessKey: store.AccessKey, SecretKey: "s", Region: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// each runs a test with a folder and with a bucket.
func each(t *testing.T, run func(*testing.T, Place)) {
	t.Run("folder", func(t *testing.T) {
		p, err := Open(t.Context(), "file://"+filepath.Join(t.TempDir(), "one", "two"), config.S3{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		run(t, p)
	})
	t.Run("bucket", func(t *testing.T) { run(t, inBucket(t, &s3.Server{Bucket: "backups", AccessKey: "k"})) })
}

func TestFiles(t *testing.T) {
	each(t, func(t *testing.T, p Place) {
		for range 2 {
			if err := p.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if names, err := p.Names(t.Context(), "log"); err != nil || len(names) > 0 {
			t.Errorf("an empty folder has %v, %v", names, err)
		}
		for _, name := range []string{"log/2/b", "log/2/a", "log/1/c", "log/d", "logs/e"} {
			if err := p.Create(t.Context(), name, []byte("content of "+name)); err != nil {
				t.Fatal(err)
			}
			if err := p.Create(t.Context(), name, []byte("other")); !errors.Is(err, ErrExists) {
				t.Errorf("create %s again: %v", name, err)
			}
			if content, err := p.Read(t.Context(), name); err != nil || string(content) != "content of "+name {
				t.Errorf("read %s: %q %v", name, content, err)
			}
		}
		for folder, want := range map[string][]string{"log": {"1/", "2/", "d"}, "log/2": {"a", "b"}} {
			if names, err := p.Names(t.Context(), folder); err != nil || !slices.Equal(names, want) {
				t.Errorf("%s has %q, %v, want %q", folder, names, err, want)
			}
		}
		for range 2 {
			if err := p.Remove(t.Context(), "log/1/c"); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.Read(t.Context(), "log/1/c"); !errors.Is(err, ErrNotFound) {
			t.Errorf("read what was removed: %v", err)
		}
		if err := p.Create(t.Context(), "log/large", bytes.Repeat([]byte{1}, MaxFile+1)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Read(t.Context(), "log/large"); err == nil || !strings.Contains(err.Error(), "larger") {
			t.Errorf("read a file that is too large: %v", err)
		}
	})
}

// TestOneCreates lets ten create one file at the same time.
func TestOneCreates(t *testing.T) {
	each(t, func(t *testing.T, p Place) {
		if err := p.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		var done atomic.Int32
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				err := p.Create(t.Context(), "log/1", []byte{byte(i)})
				switch {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, ErrExists):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if done.Load() != 1 {
			t.Errorf("%d created the file", done.Load())
		}
	})
}

// TestUnplugged takes the disk away: the folder in which it was mounted is there, and nothing is written into it.
func TestUnplugged(t *testing.T) {
	root := t.TempDir()
	p := folder(root)
	_, readErr := p.Read(t.Context(), "log/1")
	_, namesErr := p.Names(t.Context(), "log")
	for _, err := range []error{p.Create(t.Context(), "log/1", nil), p.Remove(t.Context(), "log/1"), readErr, namesErr} {
		if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "Plug in") {
			t.Errorf("got %v, want that the place is not there", err)
		}
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("%v was written, %v", entries, err)
	}
}

// TestUnfinished does not show a file that was being written when the power went.
func TestUnfinished(t *testing.T) {
	p := folder(filepath.Join(t.TempDir(), "backup"))
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path(unfinished+"x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := p.Names(t.Context(), ""); err != nil || !slices.Equal(names, []string{markName}) {
		t.Errorf("got %v, %v", names, err)
	}
}

// TestCareless refuses S3 that lets two servers write one file.
func TestCareless(t *testing.T) {
	store := &s3.Server{Bucket: "backups", AccessKey: "k", Careless: true}
	if err := inBucket(t, store).Prepare(t.Context()); err == nil || !strings.Contains(err.Error(), "conditional writes") {
		t.Errorf("got %v", err)
	}
	if keys := store.Keys(); len(keys) > 0 {
		t.Errorf("%v are left", keys)
	}
}

// TestRefused says what to do about S3's own refusals.
func TestRefused(t *testing.T) {
	for code, want := range map[string]string{
		"AccessDenied": "check s3-access-key", "ExpiredToken": "set s3-session-token", "RequestTimeTooSkewed": "clock", "NoSuchBucket": "make the bucket", "QuotaExceeded": "full",
	} {
		p := inBucket(t, &s3.Server{Bucket: "backups", AccessKey: "k", Refusal: code})
		_, readErr := p.Read(t.Context(), "log/1")
		_, namesErr := p.Names(t.Context(), "log")
		for what, err := range map[string]error{"create": p.Create(t.Context(), "log/1", nil), "read": readErr, "list": namesErr, "remove": p.Remove(t.Context(), "log/1")} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s with %s: got %v, want %q", what, code, err, want)
			}
		}
	}
}

func TestSameDisk(t *testing.T) {
	here := t.TempDir()
	if !SameDisk(folder(here), t.TempDir()) {
		t.Error("two folders beside each other are not on the same file system")
	}
	if SameDisk(folder("/proc"), here) || SameDisk(folder("/does-not-exist"), here) || SameDisk(remote{}, here) {
		t.Error("what is elsewhere is on the same file system")
	}
}
