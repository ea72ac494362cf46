package encryption

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
)

const (
	// secretboxPrefix is before what upstream's provider has encrypted
	// (apiserver/pkg/server/options/encryptionconfig/config.go); the key's name and
	// a colon follow.
	//upstream:relies-on k8s.io/apiserver/pkg/server/options/encryptionconfig/config.go secretboxTransformerPrefixV1
	secretboxPrefix = "k8s:enc:secretbox:v1:"
	// sealedFor binds the key that keyrings are encrypted under to its purpose.
	sealedFor = "kedge keys of encrypted Secrets 1"
	keySize   = 32
)

// keyring is what Secrets are encrypted with. The zero value encrypts nothing.
type keyring struct {
	// Keys are all that stored Secrets need to be read. The first is the one to
	// write with, unless Plain.
	Keys  []key `json:"keys,omitempty"`
	Plain bool  `json:"plain,omitempty"`
	// Pending says that there may be Secrets that would be written otherwise now.
	Pending bool `json:"pending,omitempty"`
}

type key struct {
	Name   string        `json:"name"`
	Secret [keySize]byte `json:"secret"`
}

// newKey makes a key whose name no other has.
func newKey(now time.Time) key {
	var k key
	suffix := make([]byte, 4)
	// Never fails: crypto/rand ends the process rather.
	_, _ = rand.Read(k.Secret[:])
	_, _ = rand.Read(suffix)
	k.Name = now.UTC().Format(time.DateOnly) + "-" + hex.EncodeToString(suffix)
	return k
}

// encrypts tells whether Secrets are to be encrypted when they are written.
func (r keyring) encrypts() bool { return len(r.Keys) > 0 && !r.Plain }

// renewed writes with a new key from now on.
func (r keyring) renewed(k key) keyring {
	return keyring{Keys: append([]key{k}, r.Keys...), Pending: true}
}

// plain encrypts nothing from now on.
func (r keyring) plain() keyring { return keyring{Keys: r.Keys, Plain: true, Pending: true} }

// rewritten is for when all Secrets are stored as they would be written now: it
// drops the keys that nothing is encrypted with.
func (r keyring) rewritten() keyring {
	if !r.encrypts() {
		return keyring{}
	}
	return keyring{Keys: slices.Clone(r.Keys[:1])}
}

// knows tells whether what is stored can be read as far as its key is concerned.
func (r keyring) knows(stored []byte) bool {
	name, encrypted := keyOf(stored)
	return !encrypted || slices.ContainsFunc(r.Keys, func(k key) bool { return k.Name == string(name) })
}

// keyOf returns the name of the key that something stored was encrypted with.
func keyOf(stored []byte) (name []byte, encrypted bool) {
	rest, encrypted := bytes.CutPrefix(stored, []byte(secretboxPrefix))
	if !encrypted {
		return nil, false
	}
	name, _, _ = bytes.Cut(rest, []byte(":"))
	return name, true
}

// seal encrypts a keyring under the content of Config.KeyFile.
func (r keyring) seal(ctx context.Context, under []byte) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode keys: %w", err)
	}
	transformer, err := sealer(under)
	if err != nil {
		return nil, err
	}
	return transformer.TransformToStorage(ctx, text, nil)
}

// open decrypts what seal has encrypted.
func open(ctx context.Context, under, sealed []byte) (r keyring, err error) {
	transformer, err := sealer(under)
	if err != nil {
		return r, err
	}
	text, _, err := transformer.TransformFromStorage(ctx, sealed, nil)
	if err != nil {
		return r, errors.New("the keys of encrypted Secrets are themselves encrypted, and not under this server's server/tls/encryption.key: " +
			"all servers of a cluster need the same; copy it from another one, or take it from a backup")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("decode keys: %w", err)
	}
	return r, nil
}

// sealer needs no slow derivation: what is in the file cannot be guessed.
func sealer(under []byte) (value.Transformer, error) {
	derived, err := hkdf.Key(sha256.New, bytes.TrimSpace(under), nil, sealedFor, keySize)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return secretbox.NewSecretboxTransformer([keySize]byte(derived)), nil
}
