package requests

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// mirrorTimeout limits a mirrored request.
const mirrorTimeout = 30 * time.Second

// chooseMirrors returns the mirrors that get a copy of the request.
func (x *exchange) chooseMirrors() (chosen []*mirror) {
	if x.hops >= maxMirroredHops {
		return nil
	}
	for _, f := range x.answered {
		for i := range f.mirrors {
			if f.mirrors[i].chosen() {
				chosen = append(chosen, &f.mirrors[i])
			}
		}
	}
	return chosen
}

// mirror sends copies of the request, when its body was read. It waits for nothing. If the body
// is larger than maxMirrored, or if the backend has answered before it was read, there are no
// copies.
func (x *exchange) mirror(to []*mirror, outgoing *http.Request, at url.URL) {
	if len(to) == 0 {
		return
	}
	send := func(content []byte) {
		for _, m := range to {
			select {
			case x.mirrors <- struct{}{}:
				started := x.start(func() {
					defer func() { <-x.mirrors }()
					x.copyTo(m.backend, x.rule.grpc, outgoing, at, content)
				})
				if !started {
					<-x.mirrors
				}
			default: // there are too many
			}
		}
	}
	if x.body == nil {
		send(nil)
	} else {
		x.body.whole = send
	}
}

// start runs a function that Close waits for, unless Close was called.
func (q *Requests) start(run func()) bool {
	q.life.Lock()
	defer q.life.Unlock()
	if q.closing.Err() != nil {
		return false
	}
	q.background.Go(run)
	return true
}

// copyTo sends a copy of a request to one endpoint of a backend.
func (q *Requests) copyTo(b *backend, http2 bool, outgoing *http.Request, at url.URL, content []byte) {
	s := b.service.Load()
	if s == nil {
		return
	}
	e := s.pick(nil)
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(q.closing, mirrorTimeout)
	defer cancel()
	request := outgoing.WithContext(ctx)
	at.Scheme, at.Host = s.pool.scheme, e.host
	request.URL, request.Trailer = &at, nil
	request.Body, request.ContentLength = nil, 0
	if len(content) > 0 {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	}
	e.active.Add(1)
	defer e.active.Add(-1)
	answer, err := s.pool.transport(http2 || s.source.Protocol == routing.PlainH2).RoundTrip(request)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxMirrored))
	_ = answer.Body.Close()
}
