package snapshot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// saved returns a snapshot of another server, with the content "new".
func saved(t *testing.T) (path string, from Config) {
	t.Helper()
	from = server(t, "new", "right")
	file, err := quick(from).saveHere(t.Context(), OnDemand)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(from.folder(), file.Name), from
}

func TestRestore(t *testing.T) {
	path, from := saved(t)
	authority := read(t, filepath.Join(from.Dir.ServerTLS(), "server-ca.key"))

	t.Run("the same server, whose token is another now", func(t *testing.T) {
		text := filepath.Join(from.Dir.ServerDB(), "text")
		if err := os.WriteFile(text, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(from.Dir.ServerToken(), []byte("another\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		restored, err := Restore(t.Context(), from, filepath.Base(path), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, text); got != "new" || restored.Authorities || read(t, from.Dir.ServerToken()) != "another\n" {
			t.Errorf("got %q, %+v", got, restored)
		}
		if got := read(t, filepath.Join(restored.Replaced, "db", "text")); got != "old" {
			t.Errorf("got earlier data %q, want \"old\"", got)
		}
		if above := from.Store.(*store).above; above < 42+bump {
			t.Errorf("revisions continue above %d, want at least %d", above, 42+bump)
		}
	})
	t.Run("a server of other authorities", func(t *testing.T) {
		cfg := server(t, "old", "wrong")
		before := read(t, cfg.Dir.ServerToken())
		if _, err := Restore(t.Context(), cfg, path, ""); err == nil || !strings.Contains(err.Error(), "--token") {
			t.Errorf("restore with the wrong token: got error %v, want one that names --token", err)
		}
		if got := read(t, filepath.Join(cfg.Dir.ServerDB(), "text")); got != "old" || read(t, cfg.Dir.ServerToken()) != before {
			t.Errorf("the refused restore changed the data to %q, or the token", got)
		}
		restored, err := Restore(t.Context(), cfg, path, "right")
		if err != nil {
			t.Fatal(err)
		}
		if !restored.Authorities || read(t, filepath.Join(cfg.Dir.ServerTLS(), "server-ca.key")) != authority {
			t.Error("the restored server does not have the snapshot's authorities")
		}
		if token := read(t, cfg.Dir.ServerToken()); token == before || !strings.HasSuffix(token, "::server:right\n") {
			t.Errorf("got token %q, want the snapshot's", token)
		}
	})
	t.Run("a new disk, and a running server", func(t *testing.T) {
		cfg := Config{Dir: datadir.Dir(filepath.Join(t.TempDir(), "new"))}
		cfg.Store = &store{dir: cfg.Dir}
		if _, err := Restore(t.Context(), cfg, path, ""); err == nil || !strings.Contains(err.Error(), "this host has no token") {
			t.Errorf("restore without a token: got error %v, want that this host has none", err)
		}
		lock, err := cfg.Dir.Lock()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(t.Context(), cfg, path, "right"); err == nil || !strings.Contains(err.Error(), "while the server is stopped") {
			t.Errorf("restore while a server runs: got error %v, want it refused", err)
		}
		if err := lock.Release(); err != nil {
			t.Fatal(err)
		}
		// As `kedge snapshot save` prints it.
		if _, err := Restore(t.Context(), cfg, "file://"+path, "right"); err != nil {
			t.Fatal(err)
		}
		if got := read(t, filepath.Join(cfg.Dir.ServerDB(), "text")); got != "new" {
			t.Errorf("got %q", got)
		}
	})
}

// TestEncryptionKeys restores on a server that has lost the API server's keys for
// objects.
func TestEncryptionKeys(t *testing.T) {
	from := server(t, "new", "right")
	from.Encryption = filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(from.Encryption, []byte("keys"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := quick(from).saveHere(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	files, err := from.listFolder()
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(from.Encryption); err != nil {
		t.Fatal(err)
	}
	without := from
	without.Encryption = ""
	if _, err := Restore(t.Context(), without, files[0].Name, ""); err == nil || !strings.Contains(err.Error(), "encryption-provider-config") {
		t.Errorf("restore without the setting: got error %v, want one that names it", err)
	}
	if _, err := Restore(t.Context(), from, files[0].Name, ""); err != nil || read(t, from.Encryption) != "keys" {
		t.Errorf("the keys were not restored: %v", err)
	}
}

// TestInterrupted stops a restore after each of its steps. The next restore or
// start ends with the old data or with the snapshot's, never with a mixture.
func TestInterrupted(t *testing.T) {
	path, _ := saved(t)
	// These are the steps of complete. Its moves may happen in any order.
	steps := []string{"tls", "token", "db"}
	for done := -1; done < 1<<len(steps); done++ {
		cfg := server(t, "old", "old")
		j := journal{State: statePreparing, Snapshot: path, Datastore: "text", Began: 7}
		if err := j.begin(cfg.Dir); err != nil {
			t.Fatal(err)
		}
		if _, err := prepare(t.Context(), cfg, &j, "right"); err != nil {
			t.Fatal(err)
		}
		want, kept := "old", cfg.Dir.Replaced(7)
		if done >= 0 {
			want, j.State = "new", stateCommitted
			if err := j.write(cfg.Dir); err != nil {
				t.Fatal(err)
			}
			current := map[string]string{"tls": cfg.Dir.ServerTLS(), "token": cfg.Dir.ServerToken(), "db": cfg.Dir.ServerDB()}
			for i, step := range steps {
				// One part of a move is done, or all of it.
				if done&(1<<i) == 0 {
					continue
				}
				if err := os.MkdirAll(kept, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(current[step], filepath.Join(kept, step)); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					if err := os.Rename(filepath.Join(cfg.Dir.Restoring(), step), current[step]); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for range 2 {
			if err := Resume(t.Context(), cfg.Dir, cfg.Store); err != nil {
				t.Fatalf("resume after the steps %b: %v", done, err)
			}
		}
		token := map[string]string{"old": "::server:old\n", "new": "::server:right\n"}[want]
		if got := read(t, filepath.Join(cfg.Dir.ServerDB(), "text")); got != want || !strings.HasSuffix(read(t, cfg.Dir.ServerToken()), token) {
			t.Errorf("after steps %b: the data are %q, want %q, and the token is %q", done, got, want, read(t, cfg.Dir.ServerToken()))
		}
		if exists(cfg.Dir.Restore()) || exists(cfg.Dir.Restoring()) || exists(kept) != (want == "new") {
			t.Errorf("after the steps %b: want the journal and the prepared files gone, and the earlier data kept if the snapshot's are in place", done)
		}
	}
}

// TestFirstRevision restores the same snapshot twice. The second time, the data
// of the first restore are gone.
func TestFirstRevision(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	m := &Manifest{Revision: 1000, Time: begin}
	if got := firstRevision(m, 5000, begin.Add(-time.Hour)); got != 5000+bump {
		t.Errorf("with a clock that is behind: got %d, want %d", got, int64(5000+bump))
	}
	first := firstRevision(m, 0, begin.Add(time.Hour))
	handedOut := first + 500*24*3600 // 500 per second for a day
	if second := firstRevision(m, 0, begin.Add(25*time.Hour)); second <= handedOut {
		t.Errorf("the second restore continues above %d, want more than %d, which was used", second, handedOut)
	}
}
