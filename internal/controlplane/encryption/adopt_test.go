package encryption

import (
	"testing"

	"k8s.io/apiserver/pkg/storage/value"
)

// What NewKeys has encrypted can be decrypted with the entry of the datastore, and need
// not be rewritten.
func TestNewKeys(t *testing.T) {
	name, sealed, secrets, err := NewKeys(t.Context(), []byte("under"))
	if err != nil || name != KeyringKey {
		t.Fatalf("the entry is %s, %v", name, err)
	}
	of := value.DefaultContext("/registry/secrets/a/b")
	stored, err := secrets.TransformToStorage(t.Context(), []byte("plain"), of)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := open(t.Context(), []byte("under"), sealed)
	if err != nil || keys.Pending || !keys.encrypts() || !keys.knows(stored) {
		t.Fatalf("the keys are %+v, %v", keys, err)
	}
	if plain, stale, err := keys.transformer().TransformFromStorage(t.Context(), stored, of); err != nil || stale || string(plain) != "plain" {
		t.Errorf("got %q, stale %t, %v", plain, stale, err)
	}
}
