package requests

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// redirect answers with another place.
func (x *exchange) redirect(to *routing.Redirect) {
	scheme, host := cmp.Or(to.Scheme, x.scheme()), cmp.Or(to.Hostname, x.host.String())
	path := x.path.raw
	if to.Path != nil {
		path = x.pathOf(to.Path)
	}
	port := to.Port
	switch {
	case port != 0:
	case to.Scheme == "https":
		port = 443
	case to.Scheme == "http":
		port = 80
	default:
		port = x.socket.publicPort
	}
	location := scheme + "://" + host
	if !(scheme == "http" && port == 80 || scheme == "https" && port == 443) {
		location += ":" + strconv.Itoa(int(port))
	}
	location += path
	if x.r.URL.RawQuery != "" {
		location += "?" + x.r.URL.RawQuery
	}
	code := to.Code
	if code < 300 || code > 399 {
		code = http.StatusFound
	}
	x.w.Header().Set("Location", location)
	x.reply(code, "")
}

// scheme returns what the client of the socket speaks.
func (x *exchange) scheme() string {
	if x.r.TLS != nil {
		return "https"
	}
	return "http"
}
