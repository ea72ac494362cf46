package pki

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// EncryptionKey is the file with what the keys of Secrets are encrypted under.
const EncryptionKey = "encryption.key"

// ensureEncryptionKey returns that file, and makes it if it is not there: of the
// authority's key, which all servers have alike and nobody else has. So the servers
// of a cluster that had no such file before all make the same. It stays when the
// authority is replaced.
func ensureEncryptionKey(folder string, authority *authority) (string, error) {
	file := filepath.Join(folder, EncryptionKey)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	text, err := os.ReadFile(authority.keyFile)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", file, err)
	}
	derived, err := hkdf.Key(sha256.New, bytes.TrimSpace(text), nil, "kedge "+EncryptionKey+" 1", sha256.Size)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", file, err)
	}
	return file, datadir.WriteFile(file, []byte(hex.EncodeToString(derived)+"\n"), keyMode)
}
