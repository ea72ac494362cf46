package snapshot

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/pki"
)

// secrets are the files without which what is in a datastore is of no use, by
// name: the authorities that nodes and kubeconfigs were signed by, the key of
// service-account tokens, and the keys of encrypted objects. They are in a
// snapshot, sealed with the server's token, which is not.
type secrets map[string][]byte

const (
	// tlsPrefix is before the names of those in the folder of certificates.
	tlsPrefix = "tls/"
	// encryptionName is the file that the API server's argument names.
	encryptionName = "encryption-provider-config"
)

// readSecrets reads those of a server. encryption is the path of the file with
// the keys for encrypted objects, empty if there is none.
func readSecrets(dir datadir.Dir, encryption string) (secrets, error) {
	found := secrets{}
	for _, pattern := range []string{"*-ca.crt", "*-ca.key", "service.key"} {
		files, err := filepath.Glob(filepath.Join(dir.ServerTLS(), pattern))
		if err != nil {
			return nil, fmt.Errorf("find certificate authorities: %w", err)
		}
		for _, file := range files {
			if found[tlsPrefix+filepath.Base(file)], err = os.ReadFile(file); err != nil {
				return nil, fmt.Errorf("read certificate authority: %w", err)
			}
		}
	}
	if encryption != "" {
		content, err := os.ReadFile(encryption)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read keys of encrypted objects: %w", err)
		} else if err == nil {
			found[encryptionName] = content
		}
	}
	return found, nil
}

// sums returns the checksum of each. It tells nothing of a key.
func (s secrets) sums() map[string]string {
	sums := map[string]string{}
	for name, content := range s {
		sum := sha256.Sum256(content)
		sums[name] = hex.EncodeToString(sum[:])
	}
	return sums
}

// sealed are secrets that were encrypted with a token: AES-256-GCM, the key made
// by PBKDF2 with SHA-256. A token may be one that a user made up.
type sealed struct {
	Salt       []byte `json:"salt"`
	Iterations int    `json:"iterations"`
	Nonce      []byte `json:"nonce"`
	Ciphertext []byte `json:"ciphertext"`
}

// iterations is what OWASP's Password Storage Cheat Sheet (2023) wants of
// PBKDF2 with SHA-256, and maxIterations what is believed of a file.
const (
	iterations    = 600_000
	maxIterations = 10_000_000
)

// seal encrypts s with the secret of a token. rounds is iterations but in tests.
func seal(s secrets, secret string, rounds int) (sealed, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return sealed{}, fmt.Errorf("encode secrets: %w", err)
	}
	box := sealed{Salt: make([]byte, 16), Nonce: make([]byte, 12), Iterations: rounds}
	// Never fails: crypto/rand ends the process rather.
	_, _ = rand.Read(box.Salt)
	_, _ = rand.Read(box.Nonce)
	gcm, err := box.cipher(secret)
	if err != nil {
		return sealed{}, err
	}
	box.Ciphertext = gcm.Seal(nil, box.Nonce, text, nil)
	return box, nil
}

// errToken says that secrets cannot be had with a token.
var errToken = errors.New("the token is not the one that the server had when the snapshot was saved")

// open decrypts with the secret of a token.
func (b sealed) open(secret string) (secrets, error) {
	if b.Iterations < 1 || b.Iterations > maxIterations || len(b.Nonce) != 12 {
		return nil, errors.New("the snapshot's secrets cannot be read")
	}
	gcm, err := b.cipher(secret)
	if err != nil {
		return nil, err
	}
	text, err := gcm.Open(nil, b.Nonce, b.Ciphertext, nil)
	if err != nil {
		return nil, errToken
	}
	var s secrets
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read the snapshot's secrets: %w", err)
	}
	return s, nil
}

func (b sealed) cipher(secret string) (cipher.AEAD, error) {
	key, err := pbkdf2.Key(sha256.New, secret, b.Salt, b.Iterations, 32)
	if err != nil {
		return nil, fmt.Errorf("make key of token: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make key of token: %w", err)
	}
	return cipher.NewGCM(block)
}

// keptToken returns the secret of the server's token, empty if it has none yet.
func keptToken(dir datadir.Dir) (string, error) {
	text, err := os.ReadFile(dir.ServerToken())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return bootstrap.ServerSecret(string(text))
}

// unpack writes the authorities and the token, as they are to be in the data
// directory, into folder. What they sign is made at the next start.
func (s secrets) unpack(folder, secret string) error {
	if err := os.Mkdir(filepath.Join(folder, "tls"), 0o700); err != nil {
		return datadir.Explain(err)
	}
	for name, content := range s {
		base, ok := strings.CutPrefix(name, tlsPrefix)
		if !ok {
			continue
		}
		if base != filepath.Base(base) {
			return fmt.Errorf("the snapshot's secret %s has no place", name)
		}
		mode := os.FileMode(0o600)
		if strings.HasSuffix(base, ".crt") {
			mode = 0o644
		}
		if err := datadir.WriteFile(filepath.Join(folder, "tls", base), content, mode); err != nil {
			return err
		}
	}
	hash, err := pki.CAHash(s[tlsPrefix+"server-ca.crt"])
	if err != nil {
		return fmt.Errorf("read the snapshot's authority: %w", err)
	}
	token := bootstrap.Token{Hash: hash, User: bootstrap.ServerUser, Secret: secret}
	return datadir.WriteFile(filepath.Join(folder, "token"), []byte(token.String()+"\n"), 0o600)
}
