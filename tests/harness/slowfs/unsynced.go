package slowfs

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// unsynced has what is not durable of a file yet. Writes go to the folder below at once, and what they
// overwrite is kept here.
type unsynced struct {
	file  *os.File
	since time.Time
	// newer has what was overwritten since the last flush began. flushing has what was
	// overwritten earlier: a flush takes time and may still fail.
	newer    overwritten
	flushing []overwritten
}

// overwritten describes an earlier state of a file: its length, and the pages that have changed since.
type overwritten struct {
	size  int64
	pages map[int64][]byte
}

// newUnsynced begins to keep what is overwritten in the file behind fd.
func newUnsynced(fd int) (*unsynced, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &unsynced{file: os.NewFile(uintptr(own), "unsynced")}
	if err := u.begin(); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// begin starts newer with the present state of the file.
func (u *unsynced) begin() error {
	info, err := u.file.Stat()
	if err != nil {
		return err
	}
	u.since = time.Now()
	u.newer = overwritten{size: info.Size(), pages: map[int64][]byte{}}
	return nil
}

// keep keeps the pages that overlap a range which is about to change.
func (u *unsynced) keep(offset, length int64) error {
	for page := offset / pageSize; page*pageSize < offset+length; page++ {
		if _, kept := u.newer.pages[page]; kept {
			continue
		}
		var old []byte
		if begin := page * pageSize; begin < u.newer.size {
			old = make([]byte, min(pageSize, u.newer.size-begin))
			// If the file became shorter in the meantime, truncate kept the rest.
			n, err := u.file.ReadAt(old, begin)
			if err != nil && err != io.EOF {
				return err
			}
			old = old[:n]
		}
		u.newer.pages[page] = old
	}
	return nil
}

// truncate keeps what a shorter length cuts off.
func (u *unsynced) truncate(size int64) error {
	if size >= u.newer.size {
		return nil
	}
	return u.keep(size, u.newer.size-size)
}

// flush begins to make the present state of the file durable, and returns how many bytes that writes.
func (u *unsynced) flush() int64 {
	bytes := int64(len(u.newer.pages)) * pageSize
	u.flushing = append(u.flushing, u.newer)
	if err := u.begin(); err != nil {
		u.newer = overwritten{size: u.newer.size, pages: map[int64][]byte{}}
	}
	return bytes
}

// flushed ends the oldest flush, and tells whether the whole file is durable.
func (u *unsynced) flushed() bool {
	if len(u.flushing) > 0 {
		u.flushing = u.flushing[1:]
	}
	info, err := u.file.Stat()
	return len(u.flushing) == 0 && len(u.newer.pages) == 0 && err == nil && info.Size() == u.newer.size
}

// revert restores the last durable state of the file.
func (u *unsynced) revert() error {
	steps := append(u.flushing, u.newer)
	for i := len(steps) - 1; i >= 0; i-- {
		for page, old := range steps[i].pages {
			if _, err := u.file.WriteAt(old, page*pageSize); err != nil {
				return err
			}
		}
		if err := u.file.Truncate(steps[i].size); err != nil {
			return err
		}
	}
	u.flushing = nil
	return nil
}

func (u *unsynced) close() { u.file.Close() }
