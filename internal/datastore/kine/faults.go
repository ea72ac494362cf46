package kine

import (
	"context"
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

// faults learns of every error of the database and decides what comes of it:
//
//	a key that exists already    nothing, that is an answer
//	no space on the disk         the request fails; said once a minute
//	damage, failed disk, file
//	   gone or not writable      no request is answered any more, the
//	                             component fails, and with it the process
//	anything else                the request fails, and the error is logged
type faults struct {
	file string
	log  *logrus.Entry
	// failed has the first error that ends the component.
	failed chan error

	mu       sync.Mutex
	fatal    error
	full     bool
	saidFull time.Time
}

func newFaults(file string) *faults {
	return &faults{file: file, log: logrus.WithField("component", name), failed: make(chan error, 1)}
}

// quiet is an error that faults has noted and, where need be, logged. kine logs
// a failed request whole, the values of Secrets included, unless its error is
// a cancellation (pkg/server/kv.go).
type quiet struct{ error }

func (quiet) Is(target error) bool { return target == context.Canceled }
func (q quiet) Unwrap() error      { return q.error }

// note records err, which happened in the request that ctx belongs to, and
// returns what kine is to be told.
func (f *faults) note(ctx context.Context, err error) error {
	var failure sqlite3.Error
	if errors.As(err, &failure) && failure.Code == sqlite3.ErrConstraint {
		return err
	}
	explained := explain(f.file, err)
	requestOf(ctx).fail(explained)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case errors.Is(explained, errFull):
		if f.full = true; time.Since(f.saidFull) >= time.Minute {
			f.saidFull = time.Now()
			f.log.Error(explained)
		}
	case isFatal(failure):
		if f.fatal == nil {
			f.fatal = explained
			f.failed <- explained
		}
	default:
		f.log.Error(explained)
	}
	return quiet{explained}
}

// wrote records that a write succeeded.
func (f *faults) wrote() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		f.full = false
		f.log.Infof("writes to %s succeed again", f.file)
	}
}

// err returns the error that ends the component, nil if there was none.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fatal
}

// answer returns the gRPC status a request gets because of a database error:
// its own, or any fatal one, for then nothing that was read can be trusted. It
// is nil if there was no such error; handled is what kine answered.
func (f *faults) answer(r *request, handled error) error {
	if err := f.err(); err != nil {
		// Not Unavailable: clients would try reads again until their time is up.
		return status.Error(codes.DataLoss, err.Error())
	}
	err := r.failure()
	if err == nil && errors.As(handled, new(quiet)) {
		err = handled
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFull):
		// etcd's own code for "database space exceeded": clients do not retry it.
		return status.Error(codes.ResourceExhausted, err.Error())
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}

// request collects the first database error of one request.
type request struct {
	once   sync.Once
	failed chan struct{}
	err    error
}

type requestKey struct{}

func withRequest(ctx context.Context) (context.Context, *request) {
	r := &request{failed: make(chan struct{})}
	return context.WithValue(ctx, requestKey{}, r), r
}

// requestOf returns nil, which is of use too, outside of a request.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

func (r *request) fail(err error) {
	if r != nil {
		r.once.Do(func() {
			r.err = err
			close(r.failed)
		})
	}
}

func (r *request) failure() error {
	select {
	case <-r.failed:
		return r.err
	default:
		return nil
	}
}

// Causes that a message of explain may have.
var (
	errFull    = errors.New("disk is full")
	errDamaged = errors.New("database is damaged")
)

// isFatal tells whether going on after err would be unsafe or in vain.
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

// explain turns an error about the database in file into one that says what to
// do about it.
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
	// SQLite has no errno for a shared-memory file that cannot grow.
	case failure.Code == sqlite3.ErrFull, failure.ExtendedCode == sqlite3.ErrIoErrSHMSize,
		errno == syscall.ENOSPC, errno == syscall.EDQUOT:
		return fmt.Errorf("%w: nothing can be written to %s until space is freed on its file system (see `df -h %s`): %w",
			errFull, file, folder, err)
	case failure.Code == sqlite3.ErrCorrupt, failure.Code == sqlite3.ErrNotADB:
		return damaged(file, err)
	case failure.Code == sqlite3.ErrReadonly, errno == syscall.EROFS, errors.Is(errno, fs.ErrPermission):
		return fmt.Errorf("%s cannot be written: mount its file system read-write (`findmnt -T %s`; after disk errors, "+
			"see `dmesg`, the kernel makes it read-only) and let root write the folder: %w", file, folder, err)
	case failure.Code == sqlite3.ErrCantOpen && errno == syscall.ENOENT:
		return fmt.Errorf("%s is gone: put it back, or, if it was moved on purpose, start kedge again: %w", file, err)
	case failure.Code == sqlite3.ErrIoErr:
		return fmt.Errorf("the disk under %s failed: see `dmesg` and check the disk before starting kedge again: %w", file, err)
	}
	return fmt.Errorf("database %s: %w", file, err)
}

// damaged is the error for a database that cannot be read as one.
func damaged(file string, err error) error {
	return fmt.Errorf("%w: %s cannot be read as it should: put back a copy, or try "+
		"`sqlite3 %s .recover | sqlite3 recovered.db`, or move the folder %s away to begin with an empty cluster: %w",
		errDamaged, file, file, filepath.Dir(file), err)
}
