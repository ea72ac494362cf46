package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Lock is a lock on a data directory or on the host, held by this process.
type Lock struct{ file *os.File }

// Lock locks the data directory for this process, and makes the directory if it is
// missing. It fails if another kedge runs on the directory, or if the directory cannot be
// written and synced. Each error says what to do.
//
// The kernel releases the lock when the process ends, in whatever way.
func (d Dir) Lock() (*Lock, error) {
	lock, err := d.lock()
	if err != nil {
		return nil, fmt.Errorf("take data directory %s: %w", string(d), Explain(err))
	}
	return lock, nil
}

func (d Dir) lock() (*Lock, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	// Go opens with O_CLOEXEC: shims and containers do not inherit the lock,
	// and so cannot hold it when kedge is gone.
	file, err := os.OpenFile(d.LockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := take(file); err != nil {
		if errors.Is(err, errTaken) {
			err = fmt.Errorf("another kedge already runs on it%s: stop that one first, or give this one its own folder with --data-dir", holder(file))
		}
		return nil, errors.Join(err, file.Close())
	}
	if err := d.checkWritable(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Lock{file}, nil
}

// Hold locks an existing data directory as Lock does, but writes nothing: kedge must be
// removable from a full disk too.
func (d Dir) Hold() (*Lock, error) {
	file, err := d.openLock()
	if file == nil && err == nil {
		return &Lock{}, nil
	}
	if err == nil {
		if err = flock(file); errors.Is(err, errTaken) {
			err = fmt.Errorf("another kedge has just started on it%s: stop that one first", holder(file))
		}
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("take data directory %s: %w", string(d), err)
	}
	return &Lock{file}, nil
}

// LockHost locks the things that a host has only once: the sockets in RunDir, fixed
// ports, interfaces and packet filters. Callers lock their data directory first. LockHost
// fails if another kedge runs on another data directory.
func LockHost() (*Lock, error) { return lockHost(RunDir) }

func lockHost(folder string) (*Lock, error) {
	fail := func(err error) (*Lock, error) { return nil, fmt.Errorf("take %s: %w", folder, Explain(err)) }
	if err := MakePassable(folder); err != nil {
		return fail(err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fail(err)
	}
	if err := take(file); err != nil {
		if errors.Is(err, errTaken) {
			err = fmt.Errorf("another kedge already runs on this host%s, on another data directory, or on one whose disk fails: stop that one first", holder(file))
		}
		return fail(errors.Join(err, file.Close()))
	}
	return &Lock{file}, nil
}

// Take locks the data directory and the host for a kedge that is about to run, until
// release is called.
func (d Dir) Take() (release func(), err error) {
	lock, err := d.Lock()
	if err != nil {
		return nil, err
	}
	host, err := LockHost()
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	return func() {
		_ = host.Release()
		_ = lock.Release()
	}, nil
}

// lockPatience is how long to wait for a lock that is taken.
const lockPatience = time.Second

// errTaken says that another process holds a lock.
var errTaken = errors.New("another process holds the lock")

// take locks the file and writes this process's id into it, for the error message of a
// second kedge.
func take(file *os.File) error {
	if err := flock(file); err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func flock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	// A killed process keeps its lock until its last thread is gone.
	for begin := time.Now(); errors.Is(err, syscall.EWOULDBLOCK) && time.Since(begin) < lockPatience; {
		time.Sleep(20 * time.Millisecond)
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// Holder returns the process id of the kedge that runs on the data directory,
// 0 if none does.
func (d Dir) Holder() (int, error) {
	file, err := d.openLock()
	if err != nil {
		return 0, fmt.Errorf("find running kedge: %w", err)
	}
	if file == nil {
		return 0, nil
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, err
	}
	return readPID(file)
}

// openLock opens the lock of an existing data directory. It returns nil if no kedge has ever started there. It also
// returns nil if the disk fails, because the user has to be able to stop the pods then. In that case
// only the lock of the host, which is in memory, tells whether kedge runs.
func (d Dir) openLock() (*os.File, error) {
	file, err := os.Open(d.LockFile())
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EIO) {
		return nil, nil
	}
	return file, err
}

// holder returns " (pid N)" of the process that has the lock. It returns "" in the moment
// before that process has written its id.
func holder(file *os.File) string {
	pid, err := readPID(file)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

func readPID(file *os.File) (int, error) {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file.Name(), err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read process id in %s: %w", file.Name(), err)
	}
	return pid, nil
}

// Release gives up the lock. The file stays, because with its removal two processes could
// hold locks on two files of the same name.
func (l *Lock) Release() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
