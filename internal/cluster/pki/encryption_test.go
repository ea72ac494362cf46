package pki

import (
	"os"
	"path/filepath"
	"testing"
)

// Servers with one authority derive the same key on their own. The key stays when the
// authority is replaced, and joining servers get it.
func TestEncryptionKey(t *testing.T) {
	ensureIn := func(folder, authorityKey string) string {
		t.Helper()
		a := &authority{keyFile: filepath.Join(folder, "server-ca.key")}
		if err := os.WriteFile(a.keyFile, []byte(authorityKey), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := ensureEncryptionKey(folder, a.keyFile)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("encryption key: got %v, %v, want mode 0600", info, err)
		}
		return string(text)
	}
	first, second, other := t.TempDir(), t.TempDir(), t.TempDir()
	one := ensureIn(first, "the authority\n")
	if two := ensureIn(second, "the authority"); one != two {
		t.Errorf("two servers have %s and %s", one, two)
	}
	if three := ensureIn(other, "another authority"); one == three {
		t.Error("two clusters have the same encryption key")
	}
	if again := ensureIn(first, "a new authority"); again != one {
		t.Error("a new authority changed the encryption key")
	}
	o := options(t)
	ensure(t, o)
	secrets, err := Secrets(o.Dir)
	if err != nil || len(secrets[EncryptionKey]) == 0 {
		t.Errorf("the encryption key is not among the secrets of servers: %v", err)
	}
}
