package datadir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxText is how many bytes ReadText reads at most: many times more than the largest
// files of manifests, and little enough for the memory of a small machine.
const maxText = 32 << 20

// null is the number of /dev/null.
var null = unix.Mkdev(1, 3)

// kinds are the words for files that are not regular.
var kinds = map[fs.FileMode]string{
	fs.ModeDir:                        "a folder",
	fs.ModeNamedPipe:                  "a FIFO",
	fs.ModeSocket:                     "a socket",
	fs.ModeDevice:                     "a device",
	fs.ModeDevice | fs.ModeCharDevice: "a device",
}

// OpenRegular opens a regular file, or a symbolic link to one, for reading. It refuses
// all other kinds without opening them: a FIFO would block the reader until somebody
// writes to it, and a device may act when it is opened. /dev/null counts as an empty file,
// because links to it stand for files that somebody has switched off.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, err
	}
	// The file may have been replaced since os.Stat.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadText returns the content of a regular file of up to 32 MiB, or of a symbolic link
// to one. It refuses larger files, and all that OpenRegular refuses.
func ReadText(path string) ([]byte, error) {
	file, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxText+1))
	if err == nil && len(text) > maxText {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("the file is larger than %d MiB: split it", maxText>>20)}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// CheckRegular fails if there is something at path that OpenRegular refuses. It does not
// fail if nothing is there.
func CheckRegular(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return regular(path, info)
}

// regular fails unless info describes a regular file or /dev/null.
func regular(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	if device, is := info.Sys().(*syscall.Stat_t); is && info.Mode()&fs.ModeCharDevice != 0 && uint64(device.Rdev) == null {
		return nil
	}
	kind := cmp.Or(kinds[info.Mode().Type()], info.Mode().Type().String())
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("this is %s: kedge reads only regular files, and symbolic links to them", kind)}
}
