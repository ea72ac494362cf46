package assets

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	lockName   = ".lock"
	tempPrefix = ".tmp-" // folders being unpacked, or being removed
)

// replace unpacks into a temporary folder, and renames that to folder when it is complete
// and on disk. The caller holds the lock.
func replace(files fs.FS, manifest Manifest, root, folder string) error {
	temp, err := os.MkdirTemp(root, tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := extract(files, manifest, temp, func(path string) bool { return !IsTool(path) }); err != nil {
		return err
	}
	if err := check(temp, manifest); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	// Without this sync, a power cut could leave the folder with files that have their
	// sizes but not their contents.
	if err := syncFilesystem(temp); err != nil {
		return err
	}
	// An existing folder has failed its check. Programs that run from it keep running. A
	// later prune removes the folder when they have ended.
	if err := os.Rename(folder, temp+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(temp, folder); err != nil {
		return err
	}
	return syncFilesystem(root)
}

// extract unpacks some files of the archive into folder, after verifying its digest. It reads the
// archive to the last of them.
func extract(files fs.FS, manifest Manifest, folder string, wanted func(path string) bool) error {
	archive, err := files.Open(ArchiveName)
	if err != nil {
		return fmt.Errorf("open embedded archive: %w", err)
	}
	defer archive.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, archive); err != nil {
		return fmt.Errorf("read embedded archive: %w", err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != manifest.SHA256 {
		return errors.New("embedded archive does not match its digest: this kedge executable is damaged, install it again")
	}
	seeker, ok := archive.(io.Seeker)
	if !ok {
		return errors.New("embedded archive cannot be read twice")
	}
	if _, err := seeker.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read embedded archive: %w", err)
	}

	decoder, err := zstd.NewReader(archive, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(WindowSize))
	if err != nil {
		return err
	}
	defer decoder.Close()
	left := 0
	for _, f := range manifest.Files {
		if wanted(f.Path) {
			left++
		}
	}
	for reader := tar.NewReader(decoder); left > 0; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read embedded archive: %w", err)
		}
		if !wanted(header.Name) {
			continue
		}
		if err := extractEntry(reader, header, folder); err != nil {
			return err
		}
		left--
	}
	return nil
}

func extractEntry(content io.Reader, header *tar.Header, folder string) error {
	if !filepath.IsLocal(header.Name) {
		return fmt.Errorf("embedded archive has a file outside its folder: %s", header.Name)
	}
	path := filepath.Join(folder, header.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeSymlink:
		return os.Symlink(header.Linkname, path)
	case tar.TypeReg:
		mode := header.FileInfo().Mode().Perm()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.Copy(f, content); err != nil {
			return err
		}
		// The umask may have taken bits away.
		if err := f.Chmod(mode); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return os.Chtimes(path, ModTime, ModTime)
	default:
		return fmt.Errorf("embedded archive has an entry of unknown type: %s", header.Name)
	}
}

// syncFilesystem waits until everything written to the file system of path is on disk.
// This is one call instead of one for each of some hundred files.
func syncFilesystem(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
