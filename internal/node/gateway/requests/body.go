package requests

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

const (
	// maxReplay is how many bytes of a body are kept, so that the request can be sent again.
	maxReplay = 64 << 10
	// maxMirrored is how many bytes the body of a request may have that is mirrored.
	maxMirrored = 256 << 10
)

var (
	errBodyGone  = errors.New("the body of the request cannot be sent again")
	errBodyEnded = errors.New("the request has ended")
)

// body is the body of a request. It can be read again from its beginning, as long as not more
// than its bound was read.
type body struct {
	source io.Reader
	// client tells whether the client was silent for too long, or is nil. http.Server ends the
	// context of the request before a read of the body has failed, so this says it first.
	client interface{ Late() bool }
	// bound is how many bytes are kept.
	bound int
	// whole is called once with all bytes when the end was read and none was lost, or is nil.
	whole func(content []byte)

	// gone says that bytes were lost, complete that the end was read, failed that the client did
	// not send all, tooLarge that it sent too much, and ended that nobody reads any more.
	gone, complete, failed, tooLarge, ended atomic.Bool

	mu   sync.Mutex
	kept []byte
	read int64
	err  error
}

// newBody returns the body of a request, or nil if it has none. It may have limit bytes, if that
// is not zero, and bound bytes are kept.
func newBody(w http.ResponseWriter, r *http.Request, limit int64, bound int) *body {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	b := &body{source: r.Body, bound: bound}
	b.client, _ = r.Body.(interface{ Late() bool })
	if limit > 0 {
		// It also tells the server not to read the rest.
		b.source = http.MaxBytesReader(w, r.Body, limit)
	}
	return b
}

// reader returns a reader from the beginning. A reader that was returned before must not be in
// use any more, except that a reading that goes on does no harm.
func (b *body) reader() io.ReadCloser { return &bodyReader{body: b} }

// end makes all readers fail. A transport may still read after it has returned an answer.
func (b *body) end() { b.ended.Store(true) }

// bodyReader is a reader of a body.
type bodyReader struct {
	body   *body
	offset int64
	closed atomic.Bool
}

// Close implements io.Closer. It leaves the body of the client open: another attempt may read it.
func (r *bodyReader) Close() error {
	r.closed.Store(true)
	return nil
}

// Read implements io.Reader.
func (r *bodyReader) Read(into []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.closed.Load() || b.ended.Load():
		return 0, errBodyEnded
	case !b.gone.Load() && r.offset < int64(len(b.kept)):
		n := copy(into, b.kept[r.offset:])
		r.offset += int64(n)
		return n, nil
	case r.offset != b.read:
		return 0, errBodyGone
	case b.err != nil:
		return 0, b.err
	}
	n, err := b.source.Read(into)
	b.read += int64(n)
	r.offset += int64(n)
	b.keep(into[:n])
	b.err = err
	var tooLarge *http.MaxBytesError
	if err == io.EOF {
		b.complete.Store(true)
		if b.whole != nil && !b.gone.Load() {
			b.whole(b.kept)
		}
	} else if err != nil {
		b.tooLarge.Store(errors.As(err, &tooLarge))
		b.failed.Store(true)
	}
	return n, err
}

func (b *body) keep(content []byte) {
	if b.gone.Load() || len(content) == 0 {
		return
	}
	if len(b.kept)+len(content) > b.bound {
		b.kept = nil
		b.gone.Store(true)
		return
	}
	b.kept = append(b.kept, content...)
}

// again returns a reader from the beginning, for a transport that has to begin anew.
func (b *body) again() (io.ReadCloser, error) {
	if b.gone.Load() {
		return nil, errBodyGone
	}
	return b.reader(), nil
}

// These methods may be called for a request without a body.
func (b *body) isWhole() bool    { return b == nil || b.complete.Load() }
func (b *body) isGone() bool     { return b != nil && b.gone.Load() }
func (b *body) isTooLarge() bool { return b != nil && b.tooLarge.Load() }
func (b *body) isLate() bool     { return b != nil && b.client != nil && b.client.Late() }
func (b *body) hasFailed() bool  { return b != nil && b.failed.Load() }
