package requests

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// A session is kept by the client: it shows a value HASH.BEGAN.USED, with a hash of the endpoint
// and two times in seconds since 1970. The hash is the same on every node of the cluster, so that
// the client may come to any of them. It is no secret: by another value, a client can only reach
// another endpoint of the same rule, which it could reach without a session.

// sessionValue is what a client shows.
type sessionValue struct {
	token       string
	began, used time.Time
}

func (v sessionValue) String() string {
	return v.token + "." + strconv.FormatInt(v.began.Unix(), 10) + "." + strconv.FormatInt(v.used.Unix(), 10)
}

func parseSession(text string) (v sessionValue, is bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return v, false
	}
	began, err := strconv.ParseInt(parts[1], 10, 64)
	used, err2 := strconv.ParseInt(parts[2], 10, 64)
	return sessionValue{parts[0], time.Unix(began, 0), time.Unix(used, 0)}, err == nil && err2 == nil
}

// valid tells whether a session still lasts.
func (v sessionValue) valid(s *routing.Session, now time.Time) bool {
	return !v.began.After(now.Add(time.Minute)) && (s.Absolute <= 0 || now.Sub(v.began) < s.Absolute) &&
		(s.Idle <= 0 || now.Sub(v.used) < s.Idle)
}

// shown returns the valid session that the client shows.
func (x *exchange) shown() (sessionValue, bool) {
	s := x.rule.session
	text := ""
	if s.Header {
		text = x.r.Header.Get(s.Name)
	} else if cookie, err := x.r.Cookie(s.Name); err == nil {
		text = cookie.Value
	}
	v, is := parseSession(text)
	return v, is && v.valid(s, x.began)
}

// sticky returns the endpoint of the client's session with its target, or nil.
func (x *exchange) sticky() (*endpoint, *target) {
	if x.rule.session == nil {
		return nil, nil
	}
	v, is := x.shown()
	if !is {
		return nil, nil
	}
	for i := range x.rule.targets {
		t := &x.rule.targets[i]
		if t.weight == 0 || t.backend == nil {
			continue
		}
		if s := t.backend.service.Load(); s != nil {
			if e := s.byToken(v.token); e != nil {
				return e, t
			}
		}
	}
	return nil, nil
}

// remember puts the session with an endpoint into an answer, if the client does not know it yet,
// or if it ends without being used.
func (x *exchange) remember(h http.Header, e *endpoint) {
	s := x.rule.session
	if s == nil {
		return
	}
	v, is := x.shown()
	if is && v.token == e.token && s.Idle <= 0 {
		return
	}
	if !is || v.token != e.token {
		v = sessionValue{token: e.token, began: x.began}
	}
	v.used = x.began
	if s.Header {
		h.Set(s.Name, v.String())
		return
	}
	cookie := http.Cookie{
		Name: s.Name, Value: v.String(), Path: x.match.cookiePath(), HttpOnly: true, Secure: x.secure(),
	}
	if s.Permanent && s.Absolute > 0 {
		cookie.MaxAge = max(1, int((s.Absolute - x.began.Sub(v.began)).Seconds()))
	}
	if text := cookie.String(); text != "" {
		h.Add("Set-Cookie", text)
	}
}
