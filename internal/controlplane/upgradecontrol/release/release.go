// Package release gets executables of kedge from where releases are published, as install.sh
// does: the sums of a release, their signature if there is a key, and an archive. Package
// upgrade calls it on a server, and `kedge upgrade --check` on the host of its user.
package release

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
)

const (
	// DefaultSource is the folder of releases that install.sh gets one from.
	DefaultSource = "https://github.com/kedge-dev/kedge/releases/download"
	// KeyFile has the public key (PEM) that releases must be signed by. install.sh leaves it
	// there if it has one.
	KeyFile = "/etc/kedge/release.pem"
)

const (
	// attempts is how often a file is asked for, as curl does for install.sh (--retry 3).
	attempts = 4
	// answerPatience is how long a source may take to begin its answer, and filePatience how
	// long a file may take.
	answerPatience = 30 * time.Second
	filePatience   = time.Hour
	// maxText is how many bytes sums, signatures and channels may have.
	maxText = 1 << 20
)

// Source is where releases come from.
type Source struct {
	base string
	key  crypto.PublicKey // or nil
	http *http.Client
	// wait is the time before the second attempt, and silence how long an answer may pause. They
	// are shorter in tests.
	wait, silence time.Duration
}

// Open returns the source with a URL, DefaultSource if it is empty. If there is a keyFile, which is
// KeyFile except in tests, its key must have signed the releases. Otherwise Open refuses http://.
func Open(base, keyFile string) (*Source, error) {
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	return newSource(base, key)
}

// readKey returns the content of a file with a key, or nil if there is none.
func readKey(path string) ([]byte, error) {
	key, err := datadir.ReadText(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return key, err
}

// newSource is Open with the key that readKey returns.
func newSource(base string, key []byte) (*Source, error) {
	s := &Source{base: strings.TrimSuffix(cmp.Or(base, DefaultSource), "/"), wait: time.Second, silence: executables.Silence}
	// An empty file is not a key, and parseKey refuses it. Otherwise releases would not be checked.
	if key != nil {
		var err error
		if s.key, err = parseKey(key); err != nil {
			return nil, err
		}
	}
	if err := s.allow(s.base); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		// The sums are those of the files as they are sent.
		DisableCompression: true, ResponseHeaderTimeout: answerPatience, TLSHandshakeTimeout: answerPatience,
	}
	s.http = &http.Client{Transport: transport, CheckRedirect: onlyTLS}
	return s, nil
}

// onlyTLS follows redirects to https only, as curl does for install.sh (--proto-redir).
func onlyTLS(request *http.Request, before []*http.Request) error {
	switch {
	case request.URL.Scheme != "https":
		return fmt.Errorf("it redirects to %s, which is refused: only https:// is followed", request.URL.Redacted())
	case len(before) >= 10:
		return errors.New("it redirects too often")
	}
	return nil
}

// allow refuses URLs whose answers cannot be trusted.
func (s *Source) allow(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil:
		var fault *url.Error
		if errors.As(err, &fault) {
			err = fault.Err // without the URL, which may have a password
		}
		return fmt.Errorf("read the URL: %w", err)
	case parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return fmt.Errorf("%q is not a URL that begins with https://", shown(text))
	case parsed.Scheme == "http" && s.key == nil:
		return fmt.Errorf("anybody on the way can change what %s sends: use https://, or put the public key that releases are signed by into %s on every server", shown(text), KeyFile)
	}
	return nil
}

// shown returns a URL without its password. Messages are in Events and logs, too, which more
// people read than Plans.
func shown(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return "the URL"
	}
	return parsed.Redacted()
}

// parseKey reads a public key as `openssl dgst -verify` takes it.
func parseKey(text []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no public key in PEM", KeyFile)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key in %s: %w", KeyFile, err)
	}
	switch key.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey:
		return key, nil
	}
	return nil, fmt.Errorf("the key in %s is a %T: releases are signed with RSA or ECDSA", KeyFile, key)
}

// Channel returns the version that a channel has in its first line.
func (s *Source) Channel(ctx context.Context, address string) (string, error) {
	if err := s.allow(address); err != nil {
		return "", fmt.Errorf("channel: %w", err)
	}
	text, err := s.text(ctx, address)
	if err != nil {
		return "", fmt.Errorf("read channel: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	version := strings.TrimSpace(line)
	if !upgrades.IsVersion(version) {
		return "", fmt.Errorf("the first line of %s is %.70q, which is not a version of kedge", shown(address), line)
	}
	return version, nil
}

// Release is a published version.
type Release struct {
	source  *Source
	version string
	// sums are SHA-256 digests by the names of files.
	sums map[string]string
}

// Find reads the sums of a version, and checks their signature.
func (s *Source) Find(ctx context.Context, version string) (*Release, error) {
	r := &Release{source: s, version: version, sums: map[string]string{}}
	text, err := s.text(ctx, r.url("SHA256SUMS"))
	if err != nil {
		return nil, fmt.Errorf("find release %s: %w", version, err)
	}
	if s.key != nil {
		signature, err := s.text(ctx, r.url("SHA256SUMS.sig"))
		if err != nil {
			return nil, fmt.Errorf("release %s must be signed, because this server has %s: %w", version, KeyFile, err)
		}
		if !signed(s.key, text, signature) {
			return nil, fmt.Errorf("the signature of release %s in %s is not by the key in %s", version, shown(s.base), KeyFile)
		}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && upgrades.IsDigest(fields[0]) {
			r.sums[strings.TrimPrefix(fields[1], "*")] = fields[0]
		}
	}
	return r, nil
}

// signed tells whether a signature is the key's.
func signed(key crypto.PublicKey, text, signature []byte) bool {
	digest := sha256.Sum256(text)
	switch key := key.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) == nil
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, digest[:], signature)
	}
	return false
}

func (r *Release) url(file string) string { return r.source.base + "/" + r.version + "/" + file }

// fileOf returns the name of the executable for an architecture as Nodes name it.
func fileOf(architecture string) string {
	if architecture == "arm" {
		architecture = "armv7"
	}
	return "kedge-" + architecture
}

// Digest returns the digest of the executable for an architecture as Nodes name it.
func (r *Release) Digest(architecture string) (string, error) {
	digest, listed := r.sums[fileOf(architecture)]
	// A node says which architecture it has. It must not get servers to store archives, too.
	if !listed || strings.Contains(architecture, ".") {
		return "", fmt.Errorf("release %s in %s has no %s", r.version, shown(r.source.base), fileOf(architecture))
	}
	return digest, nil
}

// Get calls put with the executable for an architecture, until put does not fail. Whoever calls
// it compares what put reads with Digest.
func (r *Release) Get(ctx context.Context, architecture string, put func(io.Reader) error) error {
	name := fileOf(architecture)
	_, packed := r.sums[name+".gz"]
	if packed {
		name += ".gz"
	}
	return r.source.get(ctx, r.url(name), func(body io.Reader) error {
		if !packed {
			return put(body)
		}
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		return put(unpacked)
	})
}

// text returns the content of a small file.
func (s *Source) text(ctx context.Context, address string) (text []byte, err error) {
	err = s.get(ctx, address, func(body io.Reader) error {
		if text, err = io.ReadAll(io.LimitReader(body, maxText+1)); err == nil && len(text) > maxText {
			err = fmt.Errorf("it has more than %d bytes", maxText)
		}
		return err
	})
	return text, err
}

// get asks for a file, and again after faults that may pass.
func (s *Source) get(ctx context.Context, address string, read func(io.Reader) error) error {
	for attempt, wait := 1, s.wait; ; attempt, wait = attempt+1, 2*wait {
		again, err := s.try(ctx, address, read)
		if err == nil {
			return nil
		}
		if !again || attempt == attempts {
			return fmt.Errorf("get %s: %w", shown(address), err)
		}
		if err := loop.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// try asks for a file once. again says that another attempt may succeed.
func (s *Source) try(ctx context.Context, address string, read func(io.Reader) error) (again bool, err error) {
	ctx, end := context.WithTimeout(ctx, filePatience)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false, err
	}
	response, err := s.http.Do(request)
	var fault *url.Error
	if errors.As(err, &fault) {
		err = fault.Err // without the URL, which the caller says
	}
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		again := response.StatusCode >= 500 || response.StatusCode == http.StatusRequestTimeout || response.StatusCode == http.StatusTooManyRequests
		return again, fmt.Errorf("the server answers %s", response.Status)
	}
	body, stop := executables.Noisy(response.Body, s.silence, cancel)
	defer stop()
	err = read(body)
	if cause := context.Cause(ctx); cause != nil {
		// It says more. A source may also end its answer properly when the connection is closed.
		err = cause
	}
	return true, err
}
