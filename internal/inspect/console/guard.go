package console

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"sync/atomic"
)

// guard lets only the user's browser in. Other users of this machine can connect to the port, and other sites can send the
// browser there. The link has a key that is accepted once. It gives the browser a cookie, which dies with the process.
type guard struct {
	// hosts are the values of the header Host that the browser may send. A site whose name leads to a loopback
	// address sends its own name.
	hosts       []string
	key, cookie string
	used        atomic.Bool
}

// cookieName has the port, because cookies of one host are the same for all its ports.
func (g *guard) cookieName() string {
	_, port, _ := net.SplitHostPort(g.hosts[0])
	return "kedge-console-" + port
}

// newGuard makes the guard of a page at ADDRESS:PORT.
func newGuard(address string) *guard {
	_, port, _ := net.SplitHostPort(address)
	return &guard{hosts: []string{address, "localhost:" + port}, key: rand.Text(), cookie: rand.Text()}
}

// openPath is where a browser comes with the key.
const openPath = "/open"

// link returns the link that opens the page once.
func (g *guard) link() string { return "http://" + g.hosts[0] + openPath + "?key=" + g.key }

// policy lets the browser load only what this page itself serves as files: no script and no style inside of a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// protect returns a handler that admits requests of the user's browser to next.
func (g *guard) protect(next http.Handler) http.Handler {
	// Requests that change something must come from the page itself.
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		switch {
		case r.Host != g.hosts[0] && r.Host != g.hosts[1]:
			http.Error(w, "this is the page of kedge console at "+g.hosts[0]+", and not "+r.Host, http.StatusMisdirectedRequest)
		case r.URL.Path == openPath:
			g.open(w, r)
		case !g.knows(r):
			http.Error(w, "open the link that kedge console has printed. It can be opened once: for another browser, run kedge console again", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// open gives the browser that comes first with the key its cookie.
func (g *guard) open(w http.ResponseWriter, r *http.Request) {
	switch {
	case same(r.URL.Query().Get("key"), g.key) && g.used.CompareAndSwap(false, true):
		http.SetCookie(w, &http.Cookie{Name: g.cookieName(), Value: g.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	case !g.knows(r): // the user's browser may open the link again
		http.Error(w, "this link was opened before: run kedge console again for another one", http.StatusForbidden)
		return
	}
	// The browser sends a strict cookie only with what begins on this page itself, so no redirect leads to the first page.
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(`<!doctype html><html lang="en"><title>kedge</title><meta http-equiv="refresh" content="0; url=/"><a href="/">Open the page</a>`))
}

// knows tells whether a request has the cookie.
func (g *guard) knows(r *http.Request) bool {
	cookie, err := r.Cookie(g.cookieName())
	return err == nil && same(cookie.Value, g.cookie)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
