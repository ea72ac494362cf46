package supervisor

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

const (
	// maxSending is how many executables a server sends at a time.
	maxSending = 8
	// portion is how many bytes a node must take within writePatience.
	portion = 1 << 20
)

// executable sends a node the executable with the digest that the path ends with.
func (s *Supervisor) executable(w http.ResponseWriter, r *http.Request) {
	digest := strings.TrimPrefix(r.URL.Path, upgrades.ExecutablePath)
	if s.cfg.Executable == nil || !upgrades.IsDigest(digest) {
		http.NotFound(w, r)
		return
	}
	// A node alone cannot keep the others from getting theirs: this comes first, so that too many
	// requests of one node end each other.
	ctx, end := s.streams.begin(r.Context(), upgrades.ExecutablePath, nodeOf(r))
	defer end()
	select {
	case s.sending <- struct{}{}:
		defer func() { <-s.sending }()
	default:
		s.unavailable(w, errors.New("other nodes are getting executables"))
		return
	}
	file, err := s.cfg.Executable(digest)
	if errors.Is(err, fs.ErrNotExist) {
		http.NotFound(w, r)
		return
	}
	if err != nil {
		s.unavailable(w, err)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		s.unavailable(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	sendSlowly(ctx, w, file)
}

// sendSlowly copies a file to a node, until ctx ends, or until the node does not read for
// writePatience. The node sees from Content-Length that something is missing.
func sendSlowly(ctx context.Context, w http.ResponseWriter, file io.Reader) {
	control := http.NewResponseController(w)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	// A write that waits for the node must end with ctx, too.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = control.SetWriteDeadline(time.Now())
	})
	defer func() {
		if !stop() {
			<-ended // w must not be used after this request
		}
	}()
	for {
		// The deadline comes before the look at ctx, so that it is never set after the one above.
		_ = control.SetWriteDeadline(time.Now().Add(writePatience))
		if ctx.Err() != nil {
			return
		}
		if _, err := io.CopyN(w, file, portion); err != nil {
			return
		}
	}
}
