package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// probeSize is how many bytes must fit into the data directory at the start: more than a
// file system keeps in reserve, and little enough for a slow SD card.
const probeSize = 256 << 10

// WriteFile writes a file. After a crash or a power cut, the file has either the whole
// old content or the whole new one: WriteFile writes a temporary file beside it, syncs
// that, and renames it. The file gets exactly mode, whatever the umask is. A path must
// have only one writer at a time.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return WriteTogether(File{Path: path, Data: data, Mode: mode})
}

// WriteChanged writes a file as WriteFile does, unless the file has this content already.
func WriteChanged(path string, data []byte, mode os.FileMode) error {
	if existing, err := os.ReadFile(path); err == nil && bytes.Equal(existing, data) {
		return nil
	}
	return WriteFile(path, data, mode)
}

// File is a file for WriteTogether.
type File struct {
	Path string
	Data []byte
	Mode os.FileMode
}

// WriteTogether writes files as WriteFile does, and renames them in their order, without
// a pause. So a reader can see new and old files together only for a moment. After a
// crash, they may stay so.
func WriteTogether(files ...File) error {
	for _, f := range files {
		defer os.Remove(f.temporary())
	}
	for _, step := range []func(File) error{File.write, File.rename, File.syncFolder} {
		for _, f := range files {
			if err := step(f); err != nil {
				return fmt.Errorf("write %s: %w", f.Path, Explain(err))
			}
		}
	}
	return nil
}

// temporary returns a fixed name, not a random one, so that the next write overwrites
// what a kill -9 has left.
func (f File) temporary() string {
	return filepath.Join(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+".tmp")
}

// write writes and syncs the temporary file.
func (f File) write() error {
	temporary := f.temporary()
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// O_EXCL, so that the data, above all keys, are never written through a symbolic
	// link.
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(f.Data)
	if err == nil {
		err = file.Chmod(f.Mode)
	}
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (f File) rename() error { return os.Rename(f.temporary(), f.Path) }

func (f File) syncFolder() error { return Sync(filepath.Dir(f.Path)) }

// Link makes path a symbolic link to target, unless it is one. It replaces an earlier link.
func Link(path, target string) error {
	if leads, err := os.Readlink(path); err == nil && leads == target {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("make link: %w", err)
	}
	return nil
}

// Replace puts the file or folder next in the place of current, and moves the former
// current, if there was one, to kept. The folder of kept must exist. All must be on one
// file system. If Replace was interrupted, another call completes it. If next does not
// exist, Replace is done and does nothing.
func Replace(next, current, kept string) error {
	if err := replace(next, current, kept); err != nil {
		return fmt.Errorf("replace %s: %w", current, Explain(err))
	}
	return nil
}

func replace(next, current, kept string) error {
	if _, err := os.Lstat(next); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	// If current exists, it is the old one: next would be gone otherwise.
	if err := os.Rename(current, kept); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := errors.Join(Sync(filepath.Dir(kept)), Sync(filepath.Dir(current))); err != nil {
		return err
	}
	if err := os.Rename(next, current); err != nil {
		return err
	}
	return errors.Join(Sync(filepath.Dir(current)), Sync(filepath.Dir(next)))
}

// SyncAll syncs all files and folders in folder to the disk.
func SyncAll(folder string) error {
	err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return Sync(path)
	})
	if err != nil {
		return fmt.Errorf("sync %s: %w", folder, Explain(err))
	}
	return nil
}

// SyncFolder syncs the names in a folder to the disk.
func SyncFolder(path string) error {
	if err := Sync(path); err != nil {
		return fmt.Errorf("sync %s: %w", path, Explain(err))
	}
	return nil
}

// Sync syncs a file, or the names in a folder, to the disk. The error is that of the file system.
func Sync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// checkWritable writes, syncs and removes a probe file. So a full or read-only file
// system is found before kedge leaves anything half-done.
func (d Dir) checkWritable() error {
	// Not zeros, because a file system that compresses would store them in no space.
	probe := File{d.join("probe"), bytes.Repeat([]byte("kedge\x00\xffprobe"), probeSize/12), 0o600}
	err := probe.write()
	if removed := os.Remove(probe.temporary()); err == nil {
		err = removed
	}
	return err
}

// hints say what a user can do about the faults of a file system.
var hints = []struct {
	fault syscall.Errno
	hint  string
}{
	{syscall.EROFS, "the file system is mounted read-only: mount it read-write, or choose another folder with --data-dir"},
	{syscall.ENOSPC, "the file system is full: free some space, or choose another folder with --data-dir"},
	{syscall.EDQUOT, "the disk quota is used up: free some space, or choose another folder with --data-dir"},
	{syscall.ENOTDIR, "a part of the path is a file: move it away, or choose another folder with --data-dir"},
	{syscall.EIO, "the disk reports an error and may be broken: look at the kernel's messages (`dmesg`)"},
}

// Explain adds to an error of the file system what a user can do about it. It returns
// other errors unchanged.
func Explain(err error) error {
	for _, h := range hints {
		if errors.Is(err, h.fault) {
			return fmt.Errorf("%w: %s", err, h.hint)
		}
	}
	return err
}
