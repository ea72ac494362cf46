package seeing

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/tests/harness"
)

// bundle writes a support bundle on a host and returns its files. It checks that none of them has a
// secret.
func (c *seen) bundle(host *harness.Host, name, token string) map[string]string {
	c.Helper()
	path := filepath.Join(host.Scratch("bundles"), name)
	if output, err := host.Kedge(c.Context(), "support-bundle", "--output", path).CombinedOutput(); err != nil {
		c.Fatalf("make a support bundle: %v: %s", err, output)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		c.Errorf("%s: got %v, %v, want mode 0600", name, err, info)
	}
	file, err := os.Open(path)
	if err != nil {
		c.Fatal(err)
	}
	defer file.Close()
	c.Logf("%s: %d bytes", name, info.Size())
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		c.Fatal(err)
	}
	_, secret, _ := strings.Cut(token, "::")
	_, secret, _ = strings.Cut(secret, ":")
	if secret == "" {
		c.Fatalf("the token is %q", token)
	}
	files := map[string]string{}
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			c.Fatal(err)
		}
		_, inside, _ := strings.Cut(header.Name, "/")
		files[inside] = string(text)
		for _, known := range []string{"hush", secret, "PRIVATE KEY"} {
			if i := bytes.Index(text, []byte(known)); i >= 0 {
				c.Errorf("%s in %s has a secret: %s", header.Name, name, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	}
	if len(files) < 20 {
		c.Errorf("%s has %d files only", name, len(files))
	}
	return files
}
