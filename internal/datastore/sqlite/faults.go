package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/mattn/go-sqlite3"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults receives every error of the database, and decides what follows:
//
//	no space on the disk, or
//	   its file system became    the request fails, reads continue; logged
//	   read-only                 once a minute
//	damage, failed disk, file
//	   gone or not writable      no request is answered any more, the
//	                             component fails, and with it the process
//	anything else                the request fails, and the error is logged
type faults struct {
	file string
	log  *logrus.Entry
	// failed has the first error that ends the component.
	failed chan error

	mu    sync.Mutex
	fatal error
	// refused is the error of the last write, if that may pass by itself. said is
	// when that was last logged.
	refused error
	said    time.Time
}

func newFaults(file string) *faults {
	return &faults{file: file, log: logrus.WithField("component", name), failed: make(chan error, 1)}
}

// fault is an error of the database in the form that a client gets.
type fault struct {
	error
	code codes.Code
}

// Unwrap lets errors.Is find the cause.
func (f fault) Unwrap() error { return f.error }

// GRPCStatus returns the status that gRPC sends to the client.
func (f fault) GRPCStatus() *status.Status { return status.New(f.code, f.Error()) }

// note records err and returns the error for the client.
func (f *faults) note(err error) error {
	if errors.As(err, new(fault)) {
		return err
	}
	explained := explain(f.file, err)
	var failure sqlite3.Error
	errors.As(err, &failure)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case errors.Is(explained, errFull), errors.Is(explained, errReadOnly):
		if f.refused = explained; time.Since(f.said) >= time.Minute {
			level := logrus.WarnLevel // a reminder
			if f.said.IsZero() {
				level = logrus.ErrorLevel
			}
			f.said = time.Now()
			f.log.Log(level, explained)
		}
		// etcd uses the same code for "database space exceeded". Clients do not
		// retry it.
		return fault{explained, codes.ResourceExhausted}
	case isFatal(failure), errors.Is(explained, errDamaged):
		if f.fatal == nil {
			// With Unavailable, clients would repeat reads until their time is up.
			f.fatal = fault{explained, codes.DataLoss}
			f.failed <- f.fatal
		}
		return f.fatal
	default:
		f.log.Error(explained)
		return fault{explained, codes.Unavailable}
	}
}

// wrote records that a write succeeded.
func (f *faults) wrote() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused != nil {
		f.refused = nil
		f.said = time.Time{}
		f.log.Infof("writes to %s succeed again", f.file)
	}
}

// err returns the error that ends the component, or nil if there was none.
// Nothing that was read after it can be trusted.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fatal
}

// present returns the present fault, or nil if there is none.
func (f *faults) present() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fatal != nil {
		return f.fatal
	}
	return f.refused
}

// These are causes in the errors that explain returns.
var (
	errFull     = errors.New("disk is full")
	errReadOnly = errors.New("file system is read-only")
	errDamaged  = errors.New("database is damaged")
)

// isFatal tells whether continuing after err would be unsafe or useless.
func isFatal(err sqlite3.Error) bool {
	switch err.Code {
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB, sqlite3.ErrReadonly, sqlite3.ErrPerm, sqlite3.ErrAuth:
		return true
	case sqlite3.ErrCantOpen:
		return err.SystemErrno != syscall.EMFILE && err.SystemErrno != syscall.ENFILE
	case sqlite3.ErrIoErr:
		return err.ExtendedCode != sqlite3.ErrIoErrNoMem
	}
	return false
}

// explain adds to an error about the database in file what the user can do.
func explain(file string, err error) error {
	folder := filepath.Dir(file)
	var failure sqlite3.Error
	var errno syscall.Errno
	if errors.As(err, &failure) {
		errno = failure.SystemErrno
	} else if !errors.As(err, &errno) {
		return err
	}
	switch {
	// SQLite gives no errno for a shared-memory file that cannot grow.
	case failure.Code == sqlite3.ErrFull, failure.ExtendedCode == sqlite3.ErrIoErrSHMSize,
		errno == syscall.ENOSPC, errno == syscall.EDQUOT:
		return fmt.Errorf("%w: nothing can be written to %s until space is freed on its file system (see `df -h %s`): %w",
			errFull, file, folder, err)
	case failure.Code == sqlite3.ErrCorrupt, failure.Code == sqlite3.ErrNotADB:
		return damaged(file, err)
	case errno == syscall.EROFS:
		return fmt.Errorf("%w: nothing can be written to %s until it is mounted read-write (see `findmnt -T %s`; after disk errors, "+
			"see `dmesg`, the kernel makes it read-only): %w", errReadOnly, file, folder, err)
	case failure.Code == sqlite3.ErrReadonly, errors.Is(errno, fs.ErrPermission):
		return fmt.Errorf("%s is not writable: mount its file system read-write (`findmnt -T %s`; after disk errors, "+
			"see `dmesg`, the kernel makes it read-only) and let root write the folder: %w", file, folder, err)
	case failure.Code == sqlite3.ErrCantOpen && errno == syscall.ENOENT:
		return fmt.Errorf("%s is gone: put it back, or, if it was moved on purpose, restart kedge: %w", file, err)
	case failure.Code == sqlite3.ErrIoErr:
		return fmt.Errorf("the disk under %s failed: see `dmesg`, and check the disk before you restart kedge: %w", file, err)
	}
	return fmt.Errorf("database %s: %w", file, err)
}

// damaged returns the error for a database that cannot be read.
func damaged(file string, err error) error {
	return fmt.Errorf("%w: %s cannot be read: %w. Restore a snapshot: `kedge snapshot list` lists the snapshots, "+
		"`kedge snapshot restore NAME` restores one. If there is none, try `sqlite3 %s .recover | sqlite3 recovered.db`, "+
		"or move the folder %s away to begin with an empty cluster", errDamaged, file, err, file, filepath.Dir(file))
}

// damagedWAL returns the error for a write-ahead log that has lost changes.
func damagedWAL(file string) error {
	return fmt.Errorf("%w: the last changes in %s-wal cannot be read. Restore a snapshot: `kedge snapshot list` lists the snapshots, "+
		"`kedge snapshot restore NAME` restores one. Or move %s-wal away to continue with the cluster as it was before these changes",
		errDamaged, file, file)
}
