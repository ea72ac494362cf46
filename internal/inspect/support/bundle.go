// Package support collects into one archive what helps to find faults of a host and its
// cluster. The archive has no secrets: sources that may hold secrets are left out, and
// known secrets are replaced in the rest. The cli package calls it for `kedge
// support-bundle`, even if kedge does not run.
package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/config"
)

const (
	// patience is how long one part may take.
	patience = 10 * time.Second
	// shortest is the length of the shortest secret that is replaced. Shorter ones cannot
	// be told from other text.
	shortest = 4
)

// Part is a file of the archive.
type Part struct {
	Name string
	Get  func(ctx context.Context) ([]byte, error)
}

// Write writes all parts into a .tar.gz archive, in folder. Parts that cannot be read are
// listed in its file missing.txt, with the reasons. Every occurrence of one of the
// secrets is replaced.
func Write(ctx context.Context, w io.Writer, folder string, parts []Part, secrets []string) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	hide := hider(secrets)
	now := time.Now()
	add := func(name string, text []byte) error {
		text = hide(text)
		header := &tar.Header{Name: path.Join(folder, name), Mode: 0o600, Size: int64(len(text)), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(text)
		return err
	}
	var missing bytes.Buffer
	for _, part := range parts {
		text, err := get(ctx, part)
		if err != nil {
			fmt.Fprintf(&missing, "%s: %v\n", part.Name, err)
		}
		if len(text) == 0 {
			continue
		}
		if err := add(part.Name, text); err != nil {
			return fmt.Errorf("write %s: %w", part.Name, err)
		}
	}
	if missing.Len() > 0 {
		if err := add("missing.txt", missing.Bytes()); err != nil {
			return fmt.Errorf("write missing.txt: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return ctx.Err()
}

func get(ctx context.Context, part Part) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return part.Get(ctx)
}

// hider returns a function that replaces the secrets in a text, the longest first,
// because one may be a part of another.
func hider(secrets []string) func([]byte) []byte {
	var known []string
	for _, secret := range secrets {
		if secret = strings.TrimSpace(secret); len(secret) < shortest {
			continue
		}
		known = append(known, secret)
		// Secrets in the forms that logs, JSON and URLs quote them in.
		inJSON, _ := json.Marshal(secret) // a string can always be encoded
		for _, quoted := range []string{strconv.Quote(secret), string(inJSON)} {
			known = append(known, quoted[1:len(quoted)-1])
		}
		known = append(known, url.PathEscape(secret), url.QueryEscape(secret))
	}
	slices.SortFunc(known, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range known {
		pairs = append(pairs, secret, config.Hidden)
	}
	replacer := strings.NewReplacer(pairs...)
	return func(text []byte) []byte { return []byte(replacer.Replace(string(text))) }
}
