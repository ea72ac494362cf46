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
	// secretboxPrefix begins every value that upstream's provider has encrypted
	// (apiserver/pkg/server/options/encryptionconfig/config.go). The name of the
	// key and a colon follow.
	//upstream:relies-on k8s.io/apiserver/pkg/server/options/encryptionconfig/config.go secretboxTransformerPrefixV1
	secretboxPrefix = "k8s:enc:secretbox:v1:"
	// sealedFor binds the key that keyrings are encrypted under to its purpose.
	sealedFor = "kedge keys of encrypted Secrets 1"
	keySize   = 32
)

// keyring has the keys of Secrets. The zero value encrypts nothing.
type keyring struct {
	// Keys are all keys that stored Secrets need. The first one is for writing,
	// unless Plain is set.
	Keys  []key `json:"keys,omitempty"`
	Plain bool  `json:"plain,omitempty"`
	// Pending is true while there may be Secrets that are stored in an earlier
	// way.
	Pending bool `json:"pending,omitempty"`
}

type key struct {
	Name   string        `json:"name"`
	Secret [keySize]byte `json:"secret"`
}

// newKey makes a key with a unique name.
func newKey(now time.Time) key {
	var k key
	suffix := make([]byte, 4)
	// rand.Read never fails: crypto/rand ends the process instead.
	_, _ = rand.Read(k.Secret[:])
	_, _ = rand.Read(suffix)
	k.Name = now.UTC().Format(time.DateOnly) + "-" + hex.EncodeToString(suffix)
	return k
}

// encrypts tells whether Secrets are encrypted when they are written.
func (r keyring) encrypts() bool { return len(r.Keys) > 0 && !r.Plain }

// renewed returns the keyring that writes with a new key.
func (r keyring) renewed(k key) keyring {
	return keyring{Keys: append([]key{k}, r.Keys...), Pending: true}
}

// plain returns the keyring that writes unencrypted.
func (r keyring) plain() keyring { return keyring{Keys: r.Keys, Plain: true, Pending: true} }

// rewritten returns the keyring for after all Secrets were rewritten: without the
// keys that no Secret is encrypted with.
func (r keyring) rewritten() keyring {
	if !r.encrypts() {
		return keyring{}
	}
	return keyring{Keys: slices.Clone(r.Keys[:1])}
}

// knows tells whether the keyring has the key of a stored value, or the value
// needs none.
func (r keyring) knows(stored []byte) bool {
	name, encrypted := keyOf(stored)
	return !encrypted || slices.ContainsFunc(r.Keys, func(k key) bool { return k.Name == string(name) })
}

// keyOf returns the name of the key that a stored value was encrypted with.
func keyOf(stored []byte) (name []byte, encrypted bool) {
	rest, encrypted := bytes.CutPrefix(stored, []byte(secretboxPrefix))
	if !encrypted {
		return nil, false
	}
	name, _, _ = bytes.Cut(rest, []byte(":"))
	return name, true
}

// seal encrypts the keyring under the content of Config.KeyFile.
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

// open decrypts what seal encrypted.
func open(ctx context.Context, under, sealed []byte) (r keyring, err error) {
	transformer, err := sealer(under)
	if err != nil {
		return r, err
	}
	text, _, err := transformer.TransformFromStorage(ctx, sealed, nil)
	if err != nil {
		return r, errors.New("the keys of Secrets cannot be decrypted with this server's server/tls/encryption.key: " +
			"all servers of a cluster need the same file; copy it from another server or from a backup")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("decode keys: %w", err)
	}
	return r, nil
}

// sealer derives the key quickly, because the content of the file cannot be
// guessed.
func sealer(under []byte) (value.Transformer, error) {
	derived, err := hkdf.Key(sha256.New, bytes.TrimSpace(under), nil, sealedFor, keySize)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return secretbox.NewSecretboxTransformer([keySize]byte(derived)), nil
}
