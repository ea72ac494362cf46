package apiserver

import (
	"crypto/rand"
	"crypto/rsa"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// TestAccountKeys checks tokens by the key that replaces the server's at the next start.
func TestAccountKeys(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	// write makes a file with a new key, and returns the key's ID.
	write := func(file string) string {
		t.Helper()
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		text, err := keyutil.MarshalPrivateKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := keyutil.WriteKey(file, text); err != nil {
			t.Fatal(err)
		}
		keys, err := readAccountKeys(file)
		if err != nil {
			t.Fatal(err)
		}
		return keys.GetPublicKeys(t.Context(), "")[0].KeyID
	}
	c := Config{Dir: dir, Files: pki.Files{ServiceAccountKeyFile: filepath.Join(dir.ServerTLS(), "service.key")}}
	o := options.NewServerRunOptions()
	accounts := o.Authentication.ServiceAccounts
	accounts.KeyFiles = []string{"the user's"}
	if err := useAccountKeys(o, &c); err != nil || accounts.ExternalPublicKeysGetter != nil {
		t.Errorf("a user's file is not used: %v", err)
	}
	accounts.KeyFiles = []string{c.Files.ServiceAccountKeyFile}
	if err := useAccountKeys(o, &c); err == nil {
		t.Error("got no error without a key")
	}
	own := write(c.Files.ServiceAccountKeyFile)
	if err := useAccountKeys(o, &c); err != nil || len(accounts.KeyFiles) != 0 {
		t.Fatalf("got key files %v, %v, want none yet", accounts.KeyFiles, err)
	}
	knows := func(id string, want int) {
		t.Helper()
		if keys := accounts.ExternalPublicKeysGetter.GetPublicKeys(t.Context(), id); len(keys) != want {
			t.Errorf("%d keys of ID %q, want %d", len(keys), id, want)
		}
	}
	knows(own, 1)
	knows("", 1)
	next := write(filepath.Join(dir.NextServerTLS(), "service.key"))
	knows(own, 1)
	knows(next, 1)
	knows("", 2)
	knows("another", 0)
	if err := os.RemoveAll(dir.NextServerTLS()); err != nil {
		t.Fatal(err)
	}
	knows(next, 0)
}
