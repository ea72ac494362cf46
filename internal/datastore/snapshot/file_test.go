package snapshot

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// sample writes a snapshot of content, and returns its path.
func sample(t *testing.T, content []byte, change func(*Manifest)) string {
	t.Helper()
	folder := t.TempDir()
	source := filepath.Join(folder, "content")
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Manifest{
		Format: formatVersion, Kedge: "v1.36.3+kedge.1", Datastore: "sqlite",
		Name: OnDemand, Node: "pi", Time: time.Unix(1_800_000_000, 0).UTC(), Revision: 42,
		Secrets: map[string]string{}, Sealed: join.Sealed{Salt: []byte("salt")},
	}
	if change != nil {
		change(m)
	}
	path := filepath.Join(folder, fileName(m.Name, m.Node, m.Time))
	if err := write(path, source, m); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, ".*")); len(left) > 0 {
		t.Errorf("got temporary files %q, want none", left)
	}
	return path
}

// check reads a whole snapshot, as restore does.
func check(t *testing.T, path string) ([]byte, error) {
	t.Helper()
	r, err := open(path)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.acceptable("v1.36.5+kedge.3", "sqlite"); err != nil {
		return nil, err
	}
	target := filepath.Join(t.TempDir(), "content")
	if err := r.extract(target); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	return content, nil
}

func TestFormat(t *testing.T) {
	random := make([]byte, 300_000)
	_, _ = rand.Read(random)
	for name, content := range map[string][]byte{"empty": {}, "text": []byte(strings.Repeat("all objects ", 100_000)), "random": random} {
		path := sample(t, content, nil)
		got, err := check(t, path)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(content), err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: got mode %v, %v, want 0600", name, info.Mode(), err)
		}
		// Every zstd program can read it.
		if zstd, err := exec.LookPath("zstd"); err == nil {
			output, err := exec.Command(zstd, "-dc", path).Output()
			if err != nil || !bytes.Equal(output, content) {
				t.Errorf("%s: zstd read %d bytes, %v", name, len(output), err)
			}
		}
	}
}

// TestDamage cuts a snapshot off at every length, and changes every byte of it.
func TestDamage(t *testing.T) {
	path := sample(t, []byte("all objects, all objects, all objects"), nil)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		if err := os.WriteFile(path, whole[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := check(t, path); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), "kedge snapshot list") {
			t.Fatalf("cut off at %d: %v", i, err)
		}
		changed := slices.Clone(whole)
		changed[i] ^= 0x10
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if content, err := check(t, path); err == nil && string(content) != "all objects, all objects, all objects" {
			t.Fatalf("changed at %d: read %q", i, content)
		}
	}
}

// TestWindow refuses a valid snapshot that would need too much memory to unpack.
func TestWindow(t *testing.T) {
	content := []byte("x")
	path := sample(t, content, nil)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, manifest, _ := bytes.Cut(file, []byte("{"))
	end := bytes.LastIndex(manifest, []byte("}")) + 1
	head := file[:len(file)-len(manifest)+end]
	for window, want := range map[byte]error{
		0x50: nil,        // 1 MB, RFC 8878, 3.1.1.1.2: 2^(10+exponent), which is in the upper five bits
		0x98: errDamaged, // 512 MB
	} {
		// A frame with a window, and a last block of one uncompressed byte.
		frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, window, 0x09, 0x00, 0x00, 'x'}
		if err := os.WriteFile(path, append(slices.Clone(head), frame...), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := check(t, path); !errors.Is(err, want) || want == nil && !bytes.Equal(got, content) {
			t.Errorf("window %#x: read %q, %v; want %v", window, got, err, want)
		}
	}
}

func TestAcceptable(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Manifest)
		want   string
	}{
		"same":            {nil, ""},
		"newer patch":     {func(m *Manifest) { m.Kedge = "v1.36.9+kedge.1" }, ""},
		"older":           {func(m *Manifest) { m.Kedge = "v1.34.0+kedge.1" }, ""},
		"newer minor":     {func(m *Manifest) { m.Kedge = "v1.37.0+kedge.1" }, "which is newer than this one"},
		"newer major":     {func(m *Manifest) { m.Kedge = "v2.0.0+kedge.1" }, "which is newer than this one"},
		"newer format":    {func(m *Manifest) { m.Format = 2 }, "restore it with v1.36.3+kedge.1 or later"},
		"other datastore": {func(m *Manifest) { m.Datastore = "etcd" }, "of the kind etcd, and this server's is sqlite"},
		"no version":      {func(m *Manifest) { m.Kedge = "" }, "has no version"},
	} {
		_, err := check(t, sample(t, []byte("x"), test.change))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
