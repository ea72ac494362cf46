package requests

import (
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// ambiguous is what a client is told whose path may have other segments for the backend.
const ambiguous = "The path of this request is ambiguous, and some paths of this host are protected. Send it without " +
	"an encoded slash, backslash, dot or NUL (%2F, %5C, %2E, %00), and without parameters (;) in a protected path.\n"

// mostEncodings is how often a path of a host with rights may be encoded. "%252F" is encoded
// twice.
const mostEncodings = 3

// rights are what stands between clients and the backends of a rule.
type rights struct {
	// password says that clients need one of users.
	password bool
	users    string
	// closed says that no request reaches a backend: the rule answers all of them itself, or
	// sends clients to another host or another scheme.
	closed bool
}

// rightsOf returns the rights of a rule.
func rightsOf(r *rule, users string) rights {
	own := rights{password: r.users != nil, users: users, closed: true}
	for i := range r.targets {
		if t := &r.targets[i]; t.backend != nil && t.weight > 0 && !t.filters.close() {
			own.closed = r.filters.close()
		}
	}
	return own
}

// close tells whether no request passes the filters.
func (f *filters) close() bool {
	return f.fault != 0 || f.redirect != nil && f.redirect.Scheme+f.redirect.Hostname != ""
}

// guards tells whether the paths of a host have different rights. If a backend then reads another
// path than the gateway, a client gets at what is protected from it.
func (l *listener) guards(host hosts.Name) bool {
	var first *rights
	for of := range l.routes.Fitting(host) {
		for i := range of.rights {
			if first == nil {
				first = &of.rights[i]
			}
			if of.rights[i] != *first {
				return true
			}
		}
	}
	return false
}

// note remembers the rights of a match. Two that differ are enough for guards: a host may have
// thousands of lists of users.
func (r *rules) note(own rights) {
	if len(r.rights) < 2 && !slices.Contains(r.rights, own) {
		r.rights = append(r.rights, own)
	}
}

// guarded tells whether a request is refused because its path may be another one for the backend,
// with other rights. The match is the one that takes the request, or nil.
func (x *exchange) guarded(m *match, q question) bool {
	if strings.IndexByte(x.path.match, ';') < 0 && strings.IndexByte(x.path.raw, '%') < 0 || !x.listener.guards(x.host) {
		return false
	}
	if hidesSegments(x.path.raw) {
		return true
	}
	// Some servers leave parameters out before they compare: "/admin;a" is "/admin" for them.
	q.path = withoutParameters(x.path.match)
	other := x.listener.find(x.host, &q)
	return other != m && (other == nil || m == nil || other.rule.rights != m.rule.rights)
}

// refuse answers a request with a status and a reason.
func (x *exchange) refuse(status int, reason string) {
	if x.isGRPC() {
		x.failGRPC(status)
		return
	}
	x.reply(status, reason)
}

// hidesSegments tells whether servers that decode a path, once or again, find other segments in it:
// by an encoded slash, backslash, dot or NUL.
func hidesSegments(path string) bool {
	for range mostEncodings {
		decoded, hides := decode(path)
		if hides || decoded == path {
			return hides
		}
		path = decoded
	}
	return true
}

// decode decodes the escapes of a text once, and tells whether one of them is of a character that
// divides paths. What is no escape stays.
func decode(text string) (decoded string, divides bool) {
	if strings.IndexByte(text, '%') < 0 {
		return text, false
	}
	plain := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) && isHex(text[i+1]) && isHex(text[i+2]) {
			c = fromHex(text[i+1])<<4 | fromHex(text[i+2])
			divides = divides || strings.IndexByte("/\\.\x00", c) >= 0
			i += 2
		}
		plain = append(plain, c)
	}
	return string(plain), divides
}

// withoutParameters returns a path without what follows a semicolon in its segments, and without
// the segments that are empty then.
func withoutParameters(path string) string {
	var short strings.Builder
	for segment := range strings.SplitSeq(path, "/") {
		if name, _, _ := strings.Cut(segment, ";"); name != "" {
			short.WriteString("/" + name)
		}
	}
	if short.Len() == 0 || strings.HasSuffix(path, "/") {
		short.WriteString("/")
	}
	return short.String()
}
