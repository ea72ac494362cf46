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

// EncryptionKey is the name of the file with the key under which the keys of Secrets are
// encrypted.
const EncryptionKey = "encryption.key"

// ensureEncryptionKey returns the path of that file. If the file is missing, it is made
// from the authority's key, which all servers of the cluster have and nobody else. So all
// servers of a cluster that had no such file make the same one. The file stays when the
// authority is replaced.
func ensureEncryptionKey(folder, authorityKey string) (string, error) {
	file := filepath.Join(folder, EncryptionKey)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	text, err := os.ReadFile(authorityKey)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", file, err)
	}
	derived, err := hkdf.Key(sha256.New, bytes.TrimSpace(text), nil, "kedge "+EncryptionKey+" 1", sha256.Size)
	if err != nil {
		return "", fmt.Errorf("make %s: %w", file, err)
	}
	return file, datadir.WriteFile(file, []byte(hex.EncodeToString(derived)+"\n"), keyMode)
}

// KeepEncryptionKey returns the content of that file in a data directory that has the
// authorities. If the file is missing, KeepEncryptionKey makes it.
func KeepEncryptionKey(dir datadir.Dir) ([]byte, error) {
	file, err := ensureEncryptionKey(dir.ServerTLS(), filepath.Join(dir.ServerTLS(), "server-ca.key"))
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}
