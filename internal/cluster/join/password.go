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
// or empty, it makes a password and writes the file.
func EnsurePassword(path string) (string, error) {
	text, err := os.ReadFile(path)
	password := strings.TrimSpace(string(text))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read node password: %w", err)
	case password != "":
		return password, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("keep node password: %w", datadir.Explain(err))
	}
	password = newSecret()
	if err := datadir.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("keep node password: %w", err)
	}
	return password, nil
}
