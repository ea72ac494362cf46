package requests

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

const (
	// maxMoves is how often a request that an endpoint has not got goes to another one.
	maxMoves = 3
	// defaultBackoff is the first wait between repetitions, if the user gave none, and
	// maxGrowth by how much later ones are longer at most.
	defaultBackoff = 25 * time.Millisecond
	maxGrowth      = 8
	// addedHeaders is how many headers each request gets: five of forwarded, hopsHeader and User-Agent.
	addedHeaders = 7
)

var (
	errTimeout        = errors.New("the request takes too long")
	errBackendTimeout = errors.New("the backend takes too long")
)

// attempts sends a request to endpoints until one answers.
type attempts struct {
	*exchange
	target *target
	// ctx ends with the client or with the timeout of the rule.
	ctx context.Context //nolint:containedctx // the object is a part of a call
	// outgoing is what all attempts send.
	outgoing http.Request
	url      url.URL
	// upgrade is the protocol that the client wants to switch to, or empty.
	upgrade string
	// timer is that of the rule's timeout, or nil.
	timer *time.Timer

	tried          []*endpoint
	first          [1]*endpoint // mostly, tried needs no more room
	moves, repeats int
}

// attempt is one request to one endpoint.
type attempt struct {
	endpoint *endpoint
	ctx      context.Context //nolint:containedctx // the object is a part of a call
	// cancel and timer are nil without a timeout of the attempt. Closing the answer ends it, too.
	cancel context.CancelCauseFunc
	timer  *time.Timer
	answer *http.Response
	err    error
}

// end ends an attempt. It must be called when the answer was read.
func (a *attempt) end() {
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.answer != nil {
		_ = a.answer.Body.Close()
	}
	if a.cancel != nil {
		a.cancel(nil)
	}
	a.endpoint.active.Add(-1)
}

// forward sends the request to a target, and answers with what comes back. The endpoint is that
// of the client's session, or nil.
func (x *exchange) forward(t *target, sticky *endpoint) {
	a := &attempts{exchange: x, target: t}
	a.tried = a.first[:0]
	a.ctx = x.r.Context()
	if x.rule.timeout > 0 {
		ctx, cancel := context.WithCancelCause(a.ctx)
		defer cancel(nil)
		a.ctx = ctx
		a.timer = time.AfterFunc(x.rule.timeout, func() { cancel(errTimeout) })
		defer a.timer.Stop()
	}
	mirrors := x.chooseMirrors()
	bound := maxReplay
	if len(mirrors) > 0 {
		bound = maxMirrored
	}
	if x.body = newBody(x.w.ResponseWriter, x.r, x.rule.maxBody, bound); x.body != nil {
		defer x.body.end()
	}
	a.prepare()
	if len(mirrors) > 0 {
		x.mirror(mirrors, &a.outgoing, a.url)
	}
	a.run(sticky)
}

// prepare makes what all attempts send.
func (a *attempts) prepare() {
	r := a.r
	// The values are those of the client: nobody changes them, only the map.
	header := make(http.Header, len(r.Header)+addedHeaders)
	maps.Copy(header, r.Header)
	a.upgrade = upgradeOf(header)
	trailers := wantsTrailers(header)
	removeHops(header)
	if trailers {
		header["Te"] = []string{"trailers"}
	}
	a.client.forwarded(header, r.Host, a.socket.port)
	if _, is := header["User-Agent"]; !is {
		header["User-Agent"] = []string{""} // otherwise the transport sends its own
	}
	host := r.Host
	a.url = url.URL{Path: r.URL.Path, RawPath: a.path.raw, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
	for _, f := range a.answered {
		f.request.apply(header)
		if len(header["Host"]) > 0 { // of the filter: the client's is not in the map
			host = header["Host"][0]
			delete(header, "Host")
		}
		if f.rewrite == nil {
			continue
		}
		if f.rewrite.Hostname != "" {
			host = f.rewrite.Hostname
		}
		if f.rewrite.Path != nil {
			a.setPath(a.pathOf(f.rewrite.Path))
		}
	}
	header[hopsHeader] = []string{strconv.Itoa(a.hops + 1)} // whatever filters do
	if a.url.EscapedPath() != a.url.RawPath && a.url.RawPath != "" {
		a.setPath(a.url.RawPath)
	}
	a.outgoing = http.Request{
		Method: r.Method, URL: &a.url, Header: header, Host: host, Trailer: r.Trailer,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if a.body != nil {
		a.outgoing.ContentLength = r.ContentLength
	}
}

// setPath makes backends get a path byte by byte.
func (a *attempts) setPath(raw string) {
	a.url.Opaque, a.url.RawPath = "", raw
	a.url.Path, _ = url.PathUnescape(raw)
	if a.url.EscapedPath() != raw {
		// The path has characters that package url would escape. An opaque URL is sent as it is,
		// unless it begins with two slashes.
		for len(raw) > 1 && raw[1] == '/' {
			raw = raw[1:]
		}
		a.url.Opaque = raw
	}
}

// run makes attempts until one is to be answered with.
func (a *attempts) run(next *endpoint) {
	for {
		service := a.target.backend.service.Load()
		if service == nil {
			a.fail(faultOf(a.target))
			return
		}
		if next = a.choose(service, next); next == nil {
			if len(a.tried) > 0 {
				a.giveUp(http.StatusBadGateway) // the others are gone meanwhile
			} else {
				a.fail(http.StatusServiceUnavailable)
			}
			return
		}
		a.tried = append(a.tried, next)
		a.exchange.backend, a.exchange.endpoint = service.source.Name, next.host
		try := a.try(service, next)
		status, then := a.judge(try)
		if a.goesOn(then) {
			try.end()
			next = nil
			continue
		}
		if status == 0 && then == later && a.ctx.Err() != nil {
			status = http.StatusGatewayTimeout // or the client is gone: giveUp looks
		}
		if status == 0 {
			a.deliver(try)
			return
		}
		try.end()
		a.giveUp(status)
		return
	}
}

// choose returns the endpoint of the next attempt: next unless that is nil, and at first those that
// were not tried. It returns nil if there is none.
func (a *attempts) choose(s *service, next *endpoint) *endpoint {
	if next == nil {
		next = s.pick(a.tried)
	}
	if next == nil && a.repeats > 0 {
		next = s.pick(nil)
	}
	return next
}

// try sends the request to an endpoint.
func (a *attempts) try(s *service, e *endpoint) *attempt {
	t := &attempt{endpoint: e, ctx: a.ctx}
	e.active.Add(1)
	if a.rule.backendTimeout > 0 {
		t.ctx, t.cancel = context.WithCancelCause(a.ctx)
		t.timer = time.AfterFunc(a.rule.backendTimeout, func() { t.cancel(errBackendTimeout) })
	}
	hints := &hints{to: &a.w, over: !a.r.ProtoAtLeast(1, 1)}
	defer hints.end()
	http2 := a.rule.grpc || s.source.Protocol == routing.PlainH2
	if a.body == nil && a.upgrade == "" && !http2 {
		a.url.Scheme, a.url.Host = s.pool.scheme, e.host
		t.answer, t.err = s.pool.bodiless().Do(t.ctx, &a.outgoing, hints.pass)
		return t
	}
	request := a.outgoing.WithContext(httptrace.WithClientTrace(t.ctx, &httptrace.ClientTrace{Got1xxResponse: hints.pass}))
	target := a.url
	target.Scheme, target.Host = s.pool.scheme, e.host
	request.URL = &target
	if a.upgrade != "" && !http2 {
		request.Header = request.Header.Clone()
		request.Header["Connection"], request.Header["Upgrade"] = []string{"Upgrade"}, []string{a.upgrade}
	}
	if a.body != nil {
		request.Body = a.body.reader()
		// The transport uses it only if the connection was closed before it wrote anything.
		request.GetBody = a.body.again
	}
	t.answer, t.err = s.pool.transport(http2).RoundTrip(request)
	return t
}

// sequel is what may follow from an attempt.
type sequel int

const (
	// nothing: the attempt is the last one.
	nothing sequel = iota
	// later: the request may be repeated after a wait, if the user allows it.
	later
	// elsewhere: the request may go to another endpoint at once, or else as with later.
	elsewhere
)

// judge decides what may follow from an attempt. The status is that of the answer if nothing
// follows. It is zero if the backend's is the answer.
func (a *attempts) judge(t *attempt) (status int, then sequel) {
	if t.err == nil {
		if a.rule.retry == nil || !slices.Contains(a.rule.retry.Codes, t.answer.StatusCode) {
			return 0, nothing
		}
		return 0, later
	}
	var notConnected dialError
	switch {
	case a.body.isTooLarge():
		return http.StatusRequestEntityTooLarge, nothing
	case a.body.isLate():
		return http.StatusRequestTimeout, nothing
	case a.body.hasFailed():
		return http.StatusBadRequest, nothing
	case a.r.Context().Err() != nil:
		return statusGone, nothing
	case errors.Is(context.Cause(a.ctx), errTimeout):
		return http.StatusGatewayTimeout, nothing
	case errors.Is(context.Cause(t.ctx), errBackendTimeout):
		return http.StatusGatewayTimeout, later
	case errors.As(t.err, &notConnected):
		t.endpoint.avoid()
		return http.StatusBadGateway, elsewhere
	case a.isSafe():
		return http.StatusBadGateway, elsewhere
	}
	// The endpoint may have done what the request asks for.
	return http.StatusBadGateway, later
}

// goesOn does what may follow from an attempt. It returns false if there is to be no other attempt.
func (a *attempts) goesOn(then sequel) bool {
	switch then {
	case elsewhere:
		return a.move() || a.repeat()
	case later:
		return a.repeat()
	}
	return false
}

// isSafe tells whether the request changes nothing, so that it may be asked twice.
func (a *attempts) isSafe() bool {
	switch a.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return a.body == nil
	}
	return false
}

// move tells whether the request may go to another endpoint at once.
func (a *attempts) move() bool {
	// There may be other endpoints by now.
	s := a.target.backend.service.Load()
	if a.moves >= maxMoves || a.body.isGone() || s == nil || s.pick(a.tried) == nil {
		return false
	}
	a.moves++
	return true
}

// repeat waits until the request may be repeated. It returns false if it may not.
func (a *attempts) repeat() bool {
	retry := a.rule.retry
	if retry == nil || a.repeats >= retry.Attempts || a.body.isGone() {
		return false
	}
	backoff := retry.Backoff
	if backoff <= 0 {
		backoff = defaultBackoff
	}
	// Each wait is longer, and a bit random, so that many requests do not come back together.
	backoff *= time.Duration(min(1<<min(a.repeats, 10), maxGrowth))
	backoff += time.Duration(rand.Int64N(int64(backoff)/4 + 1)) //nolint:gosec // no secret
	a.repeats++
	timer := time.NewTimer(backoff)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ctx.Done():
		return false
	}
}

// giveUp answers that there was no answer.
func (a *attempts) giveUp(status int) {
	switch {
	case status == http.StatusRequestTimeout: // the context has ended, too
	case a.r.Context().Err() != nil:
		status = statusGone
	case errors.Is(context.Cause(a.ctx), errTimeout):
		status = http.StatusGatewayTimeout
	}
	if status == statusGone {
		// Nobody gets an answer. Without the panic, the server would make one up.
		a.w.status = statusGone
		panic(http.ErrAbortHandler)
	}
	a.fail(status)
}
