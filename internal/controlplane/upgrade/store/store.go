// Package store keeps executables of kedge on a server, each under its SHA-256 digest. The
// controller of Plans puts them there, the supervisor sends them to nodes, and servers get
// them from each other.
package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

const (
	// unfinished begins the names of files that are being written.
	unfinished = ".getting-"
	// versionPatience is how long an executable may take to tell its version.
	versionPatience = 20 * time.Second
	// fetchPatience is how long another server may take to send an executable, and
	// answerPatience how long to begin.
	fetchPatience  = 30 * time.Minute
	answerPatience = 15 * time.Second
)

// Config is what a Store needs.
type Config struct {
	// Folder is where the executables are.
	Folder string
	// Servers returns the other servers of the cluster, HOST:PORT.
	Servers func() []string
	// TLS trusts the cluster, and shows the certificate of a node of it.
	TLS *tls.Config
}

// Store has the executables of this server.
type Store struct {
	cfg    Config
	client *http.Client
}

// New returns the store in a folder, which it makes when it needs it.
func New(cfg Config) *Store {
	return &Store{cfg, &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: cfg.TLS, ForceAttemptHTTP2: true, DisableKeepAlives: true, DisableCompression: true,
			DialContext: (&net.Dialer{Timeout: answerPatience}).DialContext, ResponseHeaderTimeout: answerPatience,
		},
		// A kedge server never redirects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Open opens an executable. Its error is fs.ErrNotExist if it is not there.
func (s *Store) Open(digest string) (*os.File, error) {
	if !upgrades.IsDigest(digest) {
		return nil, fs.ErrNotExist
	}
	return datadir.OpenRegular(s.path(digest))
}

// Size returns the size of an executable, or 0 if it is not there.
func (s *Store) Size(digest string) int64 {
	file, err := s.Open(digest)
	if err != nil {
		return 0
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

func (s *Store) path(digest string) string { return filepath.Join(s.cfg.Folder, digest) }

// Put writes the executable with a digest. It fails if what it reads is another one.
func (s *Store) Put(digest string, from io.Reader) (err error) {
	if !upgrades.IsDigest(digest) {
		return fmt.Errorf("%q is no SHA-256 digest", digest)
	}
	if err := os.MkdirAll(s.cfg.Folder, 0o700); err != nil {
		return fmt.Errorf("keep executable: %w", datadir.Explain(err))
	}
	file, err := os.CreateTemp(s.cfg.Folder, unfinished)
	if err != nil {
		return fmt.Errorf("keep executable: %w", datadir.Explain(err))
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	got, err := write(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("keep executable: %w", datadir.Explain(err))
	}
	if got != digest {
		return fmt.Errorf("its SHA-256 digest is %s, and not %s: it is damaged, or another one", got, digest)
	}
	if err := os.Rename(file.Name(), s.path(digest)); err != nil {
		return fmt.Errorf("keep executable: %w", err)
	}
	return datadir.SyncFolder(s.cfg.Folder)
}

// write writes an executable to disk, and returns its digest.
func write(file *os.File, from io.Reader) (digest string, err error) {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, sum), io.LimitReader(from, upgrades.MaxSize+1))
	switch {
	case err != nil:
		return "", err
	case n > upgrades.MaxSize:
		return "", fmt.Errorf("it has more than %d bytes", upgrades.MaxSize)
	}
	// Root runs it once, to ask for its version.
	if err := errors.Join(file.Chmod(0o700), file.Sync()); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Take copies the executable with a digest from a path of this host, unless it is there.
func (s *Store) Take(path, digest string) error {
	if s.Size(digest) > 0 {
		return nil
	}
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := s.Put(digest, file); err != nil {
		return fmt.Errorf("take %s: %w", path, err)
	}
	return nil
}

// Fetch gets the executable with a digest from another server, unless it is there. Its error
// is fs.ErrNotExist if no server has it.
func (s *Store) Fetch(ctx context.Context, digest string) error {
	if s.Size(digest) > 0 {
		return nil
	}
	faults := []error{fs.ErrNotExist}
	for _, server := range s.cfg.Servers() {
		err := s.fetch(ctx, server, digest)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// fetch gets an executable from one server.
func (s *Store) fetch(ctx context.Context, server, digest string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+upgrades.ExecutablePath+digest, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask a server for an executable: %w", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return fs.ErrNotExist
	default:
		return fmt.Errorf("ask the server at %s for an executable: it answers %s", server, response.Status)
	}
	if err := s.Put(digest, response.Body); err != nil {
		return fmt.Errorf("get an executable from the server at %s: %w", server, err)
	}
	return nil
}

// Keep removes all executables except some.
func (s *Store) Keep(wanted map[string]bool) error {
	entries, err := os.ReadDir(s.cfg.Folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove executables: %w", err)
	}
	var faults []error
	for _, entry := range entries {
		if name := entry.Name(); upgrades.IsDigest(name) && !wanted[name] {
			faults = append(faults, os.Remove(s.path(name)))
		}
	}
	return errors.Join(faults...)
}

// Clean removes what a process that has ended left unfinished.
func (s *Store) Clean() error {
	left, err := filepath.Glob(s.path(unfinished + "*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// Architecture returns the architecture of an executable as Nodes name it.
func (s *Store) Architecture(digest string) (string, error) {
	file, err := s.Open(digest)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return ArchitectureOf(file)
}

// ArchitectureOf returns the architecture of an executable as Nodes name it.
func ArchitectureOf(file io.ReaderAt) (string, error) {
	read, err := elf.NewFile(file)
	if err != nil {
		return "", fmt.Errorf("it is no executable of Linux: %w", err)
	}
	name, known := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_ARM: "arm"}[read.Machine]
	if !known {
		return "", fmt.Errorf("it is for the processor %s, for which there is no kedge", read.Machine)
	}
	return name, nil
}

// Version runs an executable to ask for its version.
func (s *Store) Version(ctx context.Context, digest string) (string, error) {
	return VersionOf(ctx, s.path(digest))
}

// VersionOf runs the kedge at a path to ask for its version.
func VersionOf(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	for {
		command := exec.CommandContext(ctx, path, "--version")
		command.Env = []string{}
		var out, fault bytes.Buffer
		command.Stdout, command.Stderr = &out, &fault
		err := command.Run()
		if errors.Is(err, syscall.ETXTBSY) && ctx.Err() == nil {
			// Another goroutine has started a program while the file was open for writing
			// (https://go.dev/issue/22315).
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			text, _, _ := strings.Cut(strings.TrimSpace(fault.String()), "\n")
			return "", fmt.Errorf("it does not run here: %w %s", err, text)
		}
		version, is := strings.CutPrefix(strings.TrimSpace(out.String()), "kedge ")
		if !is || !upgrades.IsVersion(version) {
			return "", errors.New("it is no kedge: it does not tell the version of one")
		}
		return version, nil
	}
}
