package join

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// EnsurePassword returns the node's password from the file path. If the file is missing
// or empty, it writes the file with the password in the file k3s, so that a machine that
// was a node of k3s stays the same node. If that file is missing too, EnsurePassword makes
// a password.
func EnsurePassword(path, k3s string) (string, error) {
	password, err := readPassword(path)
	if err != nil || password != "" {
		return password, err
	}
	if password, err = readPassword(k3s); err != nil {
		return "", err
	}
	if password == "" {
		password = newSecret()
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("keep node password: %w", datadir.Explain(err))
	}
	if err := datadir.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("keep node password: %w", err)
	}
	return password, nil
}

// readPassword returns the password in a file, or an empty text if the file is missing.
func readPassword(path string) (string, error) {
	text, err := datadir.ReadText(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read node password: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
