// Package store keeps executables of kedge on a server, each under its SHA-256 digest. The
// controller of Plans puts them there, the supervisor sends them to nodes, and servers get
// them from each other.
package store

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
)

// unfinished begins the names of files that are being written.
const unfinished = ".getting-"

// reserve is how many bytes of the disk stay free. The datastore is mostly on the same one, and
// must not find it full because of an archive that has more than anybody thought.
const reserve = 64 << 20

// Config is what a Store needs.
type Config struct {
	// Folder is where the executables are.
	Folder string
	// Servers returns the other servers of the cluster, HOST:PORT.
	Servers func() []string
	// TLS trusts the cluster, and shows the certificate of a node of it.
	TLS *tls.Config

	// free returns how many bytes are free in a folder. It is another one in tests.
	free func(folder string) (int64, error)
}

// Store has the executables of this server.
type Store struct {
	cfg    Config
	others executables.Source
}

// New returns the store in a folder, which it makes when it needs it.
func New(cfg Config) *Store {
	cfg.free = freeIn
	return &Store{cfg, executables.Source{Servers: cfg.Servers, TLS: cfg.TLS}}
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
		return fmt.Errorf("%q is not a SHA-256 digest", digest)
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
	free, err := s.cfg.free(s.cfg.Folder)
	if err != nil {
		return errors.Join(fmt.Errorf("keep executable: %w", err), file.Close())
	}
	limit := min(upgrades.MaxSize, max(free-reserve, 0))
	got, err := executables.Write(file, from, limit)
	if errors.Is(err, executables.ErrTooLarge) && limit < upgrades.MaxSize {
		err = fmt.Errorf("%d MiB are free in %s, and %d MiB of them must stay free: free some space on this server, and upgrade again",
			free>>20, s.cfg.Folder, int64(reserve)>>20)
	}
	// Root runs it once, to ask for its version.
	if err = errors.Join(err, file.Chmod(0o700), file.Close()); err != nil {
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

// freeIn returns how many bytes are free in a folder.
func freeIn(folder string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(folder, &disk); err != nil {
		return 0, fmt.Errorf("look at the room in %s: %w", folder, err)
	}
	return int64(disk.Bavail) * int64(disk.Bsize), nil
}

// Take copies the executable with a digest from a path of this host, unless it is there. It writes
// nothing if the file has another digest, because servers look at a path again and again.
func (s *Store) Take(path, digest string) error {
	if s.Size(digest) > 0 {
		return nil
	}
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(file, upgrades.MaxSize+1)); err != nil {
		return fmt.Errorf("take %s: %w", path, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return fmt.Errorf("take %s: its SHA-256 digest is %s, and not %s", path, got, digest)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("take %s: %w", path, err)
	}
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
	return s.others.Get(ctx, digest, func(from io.Reader) error { return s.Put(digest, from) })
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
		return "", fmt.Errorf("it is not an executable of Linux: %w", err)
	}
	name, known := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_ARM: "arm"}[read.Machine]
	if !known {
		return "", fmt.Errorf("it is for the processor %s, for which there is no kedge", read.Machine)
	}
	return name, nil
}

// Version runs an executable to ask for its version.
func (s *Store) Version(ctx context.Context, digest string) (string, error) {
	return executables.Version(ctx, s.path(digest))
}
