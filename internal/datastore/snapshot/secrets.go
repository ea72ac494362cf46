package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// secrets are the files without which the content of a datastore is useless, by
// name: the authorities that signed the certificates of nodes and kubeconfigs,
// the key of service-account tokens, and the keys of encrypted objects. A
// snapshot contains them, sealed with the server's token. It does not contain the
// token.
type secrets map[string][]byte

const (
	// tlsPrefix begins the names of the files in the folder of certificates.
	tlsPrefix = "tls/"
	// encryptionName is the name of the file that the API server's argument
	// points to.
	encryptionName = "encryption-provider-config"
)

// readSecrets reads the secrets of a server. encryption is the path of the file
// with the keys for encrypted objects, or empty if there is none.
func readSecrets(dir datadir.Dir, encryption string) (secrets, error) {
	shared, err := pki.Secrets(dir)
	if err != nil {
		return nil, err
	}
	found := secrets{}
	for name, content := range shared {
		found[tlsPrefix+name] = content
	}
	if encryption != "" {
		content, err := datadir.ReadText(encryption)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read keys of encrypted objects: %w", err)
		} else if err == nil {
			found[encryptionName] = content
		}
	}
	return found, nil
}

// sums returns the checksum of each file. A checksum does not reveal a key.
func (s secrets) sums() map[string]string {
	sums := map[string]string{}
	for name, content := range s {
		sum := sha256.Sum256(content)
		sums[name] = hex.EncodeToString(sum[:])
	}
	return sums
}

// keptToken returns the secret of the server's token, or an empty string if there
// is none yet.
func keptToken(dir datadir.Dir) (string, error) {
	text, err := datadir.ReadText(dir.ServerToken())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return join.ServerSecret(string(text))
}

// unpack writes the authorities and the token into folder, in the layout of the
// data directory. The next start makes the certificates that the authorities
// sign.
func (s secrets) unpack(folder, secret string) error {
	if err := os.Mkdir(filepath.Join(folder, "tls"), 0o700); err != nil {
		return datadir.Explain(err)
	}
	for name, content := range s {
		file, ok := strings.CutPrefix(name, tlsPrefix)
		if !ok {
			continue
		}
		// Two names of one file could not both be restored.
		if !filepath.IsLocal(file) || filepath.Clean(file) != file {
			return fmt.Errorf("the snapshot has a secret with an invalid name, %s", name)
		}
		path := filepath.Join(folder, "tls", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return datadir.Explain(err)
		}
		if err := datadir.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	hash, err := pki.CAHash(s[tlsPrefix+"server-ca.crt"])
	if err != nil {
		return fmt.Errorf("read the snapshot's authority: %w", err)
	}
	token := join.Token{Hash: hash, User: join.ServerUser, Secret: secret}
	return datadir.WriteFile(filepath.Join(folder, "token"), []byte(token.String()+"\n"), 0o600)
}
