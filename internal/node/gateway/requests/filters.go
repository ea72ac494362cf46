package requests

import (
	"math/rand/v2"
	"net/http"
	"net/textproto"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// filters are those of a rule or of a target. The Gateway API allows each kind once, except
// mirrors. They apply in this order: fault, CORS, redirect, then the changes to the request,
// mirrors, and the changes to the answer. So a redirect to HTTPS comes before a password is
// asked for, and mirrors get what the backend gets.
type filters struct {
	fault    int
	cors     *cors
	redirect *routing.Redirect
	request  *headers
	rewrite  *routing.Rewrite
	mirrors  []mirror
	answer   *headers
}

// headers are changes to headers, with canonical names.
type headers struct {
	set, add []routing.Header
	remove   []string
}

// mirror says that a part of the requests is copied to another backend.
type mirror struct {
	backend                *backend
	numerator, denominator int
}

func compileFilters(from []routing.Filter, backendOf func(string) *backend) (f filters) {
	for i := range from {
		switch next := &from[i]; {
		case next.RequestHeaders != nil:
			f.request = f.request.with(next.RequestHeaders)
		case next.ResponseHeaders != nil:
			f.answer = f.answer.with(next.ResponseHeaders)
		case next.Redirect != nil:
			f.redirect = next.Redirect
		case next.Rewrite != nil:
			f.rewrite = next.Rewrite
		case next.Mirror != nil:
			f.mirrors = append(f.mirrors, mirror{
				backendOf(next.Mirror.Backend), next.Mirror.Numerator, max(next.Mirror.Denominator, 1),
			})
		case next.CORS != nil:
			f.cors = newCORS(next.CORS)
		case next.Fault != 0:
			f.fault = next.Fault
		}
	}
	return f
}

// with returns the changes with those of a filter.
func (h *headers) with(from *routing.Headers) *headers {
	if h == nil {
		h = &headers{}
	}
	canonical := func(of []routing.Header) (all []routing.Header) {
		for _, header := range of {
			all = append(all, routing.Header{Name: textproto.CanonicalMIMEHeaderKey(header.Name), Value: header.Value})
		}
		return all
	}
	h.set = append(h.set, canonical(from.Set)...)
	h.add = append(h.add, canonical(from.Add)...)
	for _, name := range from.Remove {
		h.remove = append(h.remove, textproto.CanonicalMIMEHeaderKey(name))
	}
	return h
}

// apply changes headers.
func (h *headers) apply(to http.Header) {
	if h == nil {
		return
	}
	for i := range h.set {
		to[h.set[i].Name] = []string{h.set[i].Value}
	}
	for i := range h.add {
		// The slice may be shared with another request's.
		values := to[h.add[i].Name]
		to[h.add[i].Name] = append(values[:len(values):len(values)], h.add[i].Value)
	}
	for _, name := range h.remove {
		delete(to, name)
	}
}

// answer answers the request if a filter says so.
func (x *exchange) answer(f *filters) bool {
	switch {
	case f.fault != 0:
		x.fail(f.fault)
	case f.cors != nil && isPreflight(x.r):
		x.preflight(f.cors)
	case f.redirect != nil:
		x.redirect(f.redirect)
	default:
		return false
	}
	return true
}

// choose returns a random target by the weights, or nil if no target has any.
func (r *rule) choose() *target {
	if r.weights == 0 {
		return nil
	}
	at := rand.IntN(r.weights) //nolint:gosec // no secret
	for i := range r.targets {
		if at -= r.targets[i].weight; at < 0 {
			return &r.targets[i]
		}
	}
	return nil
}

// chosen tells whether a request is one of those that are copied.
func (m *mirror) chosen() bool {
	return rand.IntN(m.denominator) < m.numerator //nolint:gosec // no secret
}
