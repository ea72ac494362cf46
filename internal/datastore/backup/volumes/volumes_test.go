package volumes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// fixture is a store in a folder, with the key of its owner.
type fixture struct {
	*Store
	key    *chain.RecoveryKey
	folder string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	folder := t.TempDir()
	at, err := place.Open(t.Context(), "file://"+folder, config.S3{}, nil)
	must(t, err)
	must(t, at.Prepare(t.Context()))
	key, err := chain.NewRecoveryKey()
	must(t, err)
	writer, err := key.Appoint(1, nil, noon)
	must(t, err)
	store, err := New(at, writer)
	must(t, err)
	store.rest = func(context.Context, time.Duration) {}
	return &fixture{store, key, folder}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// save saves contents.
func (f *fixture) save(t *testing.T, at time.Time, before *Ref, content []byte) Saved {
	t.Helper()
	saved, err := f.Save(t.Context(), Version{Volume: "pvc-1", Time: at, About: []byte(`{}`)}, before, bytes.NewReader(content), nil)
	must(t, err)
	return saved
}

// restore returns the contents of a version.
func (f *fixture) restore(t *testing.T, ref Ref) ([]byte, error) {
	t.Helper()
	v, err := f.Version(t.Context(), "pvc-1", ref)
	if err != nil {
		return nil, err
	}
	secret, err := v.OpenKey(f.key)
	must(t, err)
	var content bytes.Buffer
	err = f.Restore(t.Context(), v, secret, &content, nil)
	return content.Bytes(), err
}

// random returns bytes that do not compress, always the same ones.
func random(size int) []byte {
	content := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(content)
	return content
}

// TestVersions checks that each version comes back, and that only what has changed is written.
func TestVersions(t *testing.T) {
	f := newFixture(t)
	first := random(40 << 20)
	second := slices.Concat(first[:20<<20], []byte("inserted"), first[20<<20:])
	one := f.save(t, noon, nil, first)
	two := f.save(t, noon.Add(time.Hour), &one.Ref, second)
	if one.Size != int64(len(first)) || one.Sent < one.Size || two.Sent > 20<<20 {
		t.Errorf("sent %d of %d bytes, and then %d", one.Sent, one.Size, two.Sent)
	}
	three := f.save(t, noon.Add(2*time.Hour), &two.Ref, first)
	if three.Sent > 1<<20 {
		t.Errorf("sent %d bytes of what the backup had", three.Sent)
	}
	empty := f.save(t, noon.Add(3*time.Hour), &three.Ref, nil)
	for ref, want := range map[Ref][]byte{one.Ref: first, two.Ref: second, three.Ref: first, empty.Ref: nil} {
		if got, err := f.restore(t, ref); err != nil || !bytes.Equal(got, want) {
			t.Errorf("version %s came back with %d bytes, want %d: %v", ref.Name, len(got), len(want), err)
		}
	}
	// A version that was removed costs only that everything is written again.
	must(t, os.Remove(filepath.Join(f.folder, f.versionFile("pvc-1", two.Name))))
	again := f.save(t, noon.Add(4*time.Hour), &two.Ref, first)
	if got, err := f.restore(t, again.Ref); err != nil || !bytes.Equal(got, first) {
		t.Errorf("without the version before: %d bytes, %v", len(got), err)
	}
}

// TestInterrupted ends a call in the middle. The pieces that it has written belong to a key that is lost with the call. A later call must not use these pieces.
func TestInterrupted(t *testing.T) {
	f := newFixture(t)
	content := random(20 << 20)
	cut := io.MultiReader(bytes.NewReader(content[:15<<20]), iotest.ErrReader(errors.New("the node is gone")))
	if _, err := f.Save(t.Context(), Version{Volume: "pvc-1", Time: noon}, nil, cut, nil); err == nil || !strings.Contains(err.Error(), "the node is gone") {
		t.Fatalf("save what breaks off: %v", err)
	}
	saved := f.save(t, noon, nil, content)
	if got, err := f.restore(t, saved.Ref); err != nil || !bytes.Equal(got, content) {
		t.Errorf("came back with %d bytes, %v", len(got), err)
	}
	left, err := f.Prune(t.Context(), "pvc-1", true, Keep{All: time.Hour, Daily: time.Hour}, noon)
	must(t, err)
	if len(left) != 1 || f.size(t) > saved.Sent+1<<10 {
		t.Errorf("after the pruning there are versions %v and %d bytes, want %d", left, f.size(t), saved.Sent)
	}
	if got, err := f.restore(t, saved.Ref); err != nil || !bytes.Equal(got, content) {
		t.Errorf("came back with %d bytes after the pruning, %v", len(got), err)
	}
}

// size returns how many bytes are in the place.
func (f *fixture) size(t *testing.T) (size int64) {
	t.Helper()
	must(t, filepath.WalkDir(f.folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		size += info.Size()
		return err
	}))
	return size
}

// pieces returns the files of all pieces.
func (f *fixture) pieces(t *testing.T) []string {
	t.Helper()
	var files []string
	must(t, f.eachPiece(t.Context(), "pvc-1", func(name string) error {
		files = append(files, filepath.Join(f.folder, pieceFile("pvc-1", name)))
		return nil
	}))
	return files
}

// TestForged changes each kind of file as somebody can who writes to the place. No such version comes back.
func TestForged(t *testing.T) {
	content := random(12 << 20)
	for name, forge := range map[string]func(t *testing.T, f *fixture, saved Saved){
		"a byte of a piece": func(t *testing.T, f *fixture, _ Saved) {
			file := f.pieces(t)[0]
			text, err := os.ReadFile(file)
			must(t, err)
			text[len(text)-1]++
			must(t, os.WriteFile(file, text, 0o600))
		},
		"the end of a piece":    func(t *testing.T, f *fixture, _ Saved) { must(t, os.Truncate(f.pieces(t)[0], 100)) },
		"no piece":              func(t *testing.T, f *fixture, _ Saved) { must(t, os.Remove(f.pieces(t)[0])) },
		"another piece":         func(t *testing.T, f *fixture, _ Saved) { must(t, os.Rename(f.pieces(t)[0], f.pieces(t)[1])) },
		"the file of a version": func(t *testing.T, f *fixture, saved Saved) { f.forgeVersion(t, saved, `"size":`, `"size":1`) },
		"an older version": func(t *testing.T, f *fixture, saved Saved) {
			older := f.save(t, noon.Add(-time.Hour), nil, []byte("older"))
			must(t, os.Rename(filepath.Join(f.folder, f.versionFile("pvc-1", older.Name)), filepath.Join(f.folder, f.versionFile("pvc-1", saved.Name))))
		},
		// Whoever has the public half can encrypt to it, but does not know the names.
		"a piece that somebody else encrypted": func(t *testing.T, f *fixture, saved Saved) {
			v, err := f.Version(t.Context(), "pvc-1", saved.Ref)
			must(t, err)
			recipient, err := (&chain.Writer{Appointment: chain.Appointment{Recipient: v.Recipient}}).Recipients()
			must(t, err)
			sealed, err := chain.Seal([]byte("forged"), recipient...)
			must(t, err)
			must(t, os.WriteFile(f.pieces(t)[0], sealed, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			saved := f.save(t, noon, nil, content)
			forge(t, f, saved)
			if got, err := f.restore(t, saved.Ref); err == nil {
				t.Errorf("%d bytes came back", len(got))
			}
		})
	}
}

func (f *fixture) forgeVersion(t *testing.T, saved Saved, from, to string) {
	t.Helper()
	file := filepath.Join(f.folder, f.versionFile("pvc-1", saved.Name))
	text, err := os.ReadFile(file)
	must(t, err)
	if !bytes.Contains(text, []byte(from)) {
		t.Fatalf("the version has no %s", from)
	}
	must(t, os.WriteFile(file, bytes.Replace(text, []byte(from), []byte(to), 1), 0o600))
}

// TestThief reads everything that the place and a stolen server have. Neither the contents nor the key of the volume are there.
func TestThief(t *testing.T) {
	f := newFixture(t)
	content := bytes.Repeat([]byte("a secret of a pod. "), 100000)
	saved := f.save(t, noon, nil, content)
	v, err := f.Version(t.Context(), "pvc-1", saved.Ref)
	must(t, err)
	secret, err := v.OpenKey(f.key)
	must(t, err)
	must(t, filepath.WalkDir(f.folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if bytes.Contains(text, []byte("a secret")) || bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s can be read", file)
		}
		return err
	}))
	other, err := chain.NewRecoveryKey()
	must(t, err)
	if _, err := v.OpenKey(other); err == nil {
		t.Error("another recovery key opens the volume")
	}
	// Two clusters with the same contents have no name in common, so the place does not tell that they are the same.
	f2 := newFixture(t)
	f2.save(t, noon, nil, content)
	for _, file := range f2.pieces(t) {
		if slices.ContainsFunc(f.pieces(t), func(other string) bool { return filepath.Base(other) == filepath.Base(file) }) {
			t.Error("two clusters name the same content alike")
		}
	}
}

// TestReadable reads a version without this package, as docs/backup.md says.
func TestReadable(t *testing.T) {
	f := newFixture(t)
	content := random(9 << 20)
	saved := f.save(t, noon, nil, content)
	text, err := os.ReadFile(filepath.Join(f.folder, "volumes", "pvc-1", "versions", saved.Name))
	must(t, err)
	var version struct {
		Key    []byte
		Pieces []string
	}
	must(t, json.Unmarshal(text, &version))
	open := func(identity string, sealed []byte) []byte {
		parsed, err := age.ParseX25519Identity(identity)
		must(t, err)
		decrypted, err := age.Decrypt(bytes.NewReader(sealed), parsed)
		must(t, err)
		unpacked, err := zstd.NewReader(decrypted)
		must(t, err)
		defer unpacked.Close()
		opened, err := io.ReadAll(unpacked)
		must(t, err)
		return opened
	}
	key := string(open(f.key.String(), version.Key))
	var got []byte
	for _, piece := range version.Pieces {
		sealed, err := os.ReadFile(filepath.Join(f.folder, "volumes", "pvc-1", "pieces", piece[:1], piece[1:]))
		must(t, err)
		got = append(got, open(key, sealed)...)
	}
	if !bytes.Equal(got, content) {
		t.Errorf("got %d bytes, want %d", len(got), len(content))
	}
}

// TestPrune checks which versions stay.
func TestPrune(t *testing.T) {
	f := newFixture(t)
	var before *Ref
	all := map[string]string{}
	content := random(3 << 20)
	for _, age := range []int{250, 100, 76, 74, 50, 26, 25, 3, 1} { // in hours
		saved := f.save(t, noon.Add(-time.Duration(age)*time.Hour), before, content[:age<<10])
		before, all[saved.Name] = &saved.Ref, saved.Name
	}
	left, err := f.Prune(t.Context(), "pvc-1", true, Keep{All: 24 * time.Hour, Daily: 120 * time.Hour}, noon)
	must(t, err)
	var ages []int
	for _, name := range left {
		at, err := time.Parse(versionTime, strings.SplitN(name, "-", 2)[0])
		must(t, err)
		ages = append(ages, int(noon.Sub(at).Hours()))
	}
	if want := []int{1, 3, 25, 50, 74, 100}; !slices.Equal(ages, want) {
		t.Errorf("versions of %v hours ago are left, want %v", ages, want)
	}
	if got, err := f.restore(t, *before); err != nil || len(got) != 1<<10 {
		t.Errorf("the newest version: %d bytes, %v", len(got), err)
	}
	later := noon.Add(1000 * time.Hour)
	if left, err := f.Prune(t.Context(), "pvc-1", true, Keep{}, later); err != nil || len(left) != 1 {
		t.Errorf("of a volume in use, %v are left, %v, want the newest", left, err)
	}
	if left, err := f.Prune(t.Context(), "pvc-1", false, Keep{}, later); err != nil || len(left) != 0 || len(f.pieces(t)) != 0 {
		t.Errorf("of a volume that is gone, %v are left, %v", left, err)
	}
	if names, err := f.Volumes(t.Context()); err != nil || len(names) > 1 {
		t.Errorf("volumes %v, %v", names, err)
	}
}
