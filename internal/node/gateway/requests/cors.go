package requests

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Headers of the CORS protocol (https://fetch.spec.whatwg.org/#http-cors-protocol).
const (
	requestMethod  = "Access-Control-Request-Method"
	requestHeaders = "Access-Control-Request-Headers"
	allowOrigin    = "Access-Control-Allow-Origin"
	allowMethods   = "Access-Control-Allow-Methods"
	allowHeaders   = "Access-Control-Allow-Headers"
	allowCreds     = "Access-Control-Allow-Credentials"
	exposeHeaders  = "Access-Control-Expose-Headers"
	maxAge         = "Access-Control-Max-Age"
)

// defaultMaxAge is the default of HTTPCORSFilter.MaxAge of the Gateway API, in seconds.
const defaultMaxAge = 5

// cors is a compiled filter for requests of other origins.
type cors struct {
	origins     []origin
	credentials bool
	// The texts are empty if there is nothing to say. If "any" is set, the client gets what it
	// asks for.
	methods, headers, expose string
	anyMethod, anyHeader     bool
	maxAge                   string
}

// origin is a pattern for origins.
type origin struct {
	// any fits every origin.
	any bool
	// scheme and port are exact. Host is exact, or what follows a star.
	scheme, host, port string
	wildcard           bool
}

func newCORS(from *routing.CORS) *cors {
	c := &cors{credentials: from.AllowCredentials, maxAge: strconv.Itoa(defaultMaxAge)}
	for _, text := range from.AllowOrigins {
		if text == "*" {
			c.origins = append(c.origins, origin{any: true})
		} else if o, is := parseOrigin(text); is {
			o.host, o.wildcard = strings.CutPrefix(o.host, "*")
			c.origins = append(c.origins, o)
		}
	}
	c.methods, c.anyMethod = strings.Join(from.AllowMethods, ", "), slices.Contains(from.AllowMethods, "*")
	c.headers, c.anyHeader = strings.Join(from.AllowHeaders, ", "), slices.Contains(from.AllowHeaders, "*")
	c.expose = strings.Join(from.ExposeHeaders, ", ")
	if c.credentials && slices.Contains(from.ExposeHeaders, "*") {
		// With credentials, browsers take the star for a name.
		c.expose = strings.Join(slices.DeleteFunc(slices.Clone(from.ExposeHeaders), func(name string) bool {
			return name == "*"
		}), ", ")
	}
	if from.MaxAge > 0 {
		c.maxAge = strconv.Itoa(from.MaxAge)
	}
	return c
}

// parseOrigin splits an origin.
func parseOrigin(text string) (o origin, is bool) {
	if o.scheme, o.host, is = strings.Cut(strings.ToLower(text), "://"); !is || strings.ContainsFunc(o.host, strange) {
		return o, false
	}
	switch o.scheme {
	case "http":
		o.port = "80"
	case "https":
		o.port = "443"
	}
	if at := strings.LastIndexByte(o.host, ':'); at > strings.LastIndexByte(o.host, ']') {
		o.host, o.port = o.host[:at], o.host[at+1:]
	}
	return o, true
}

// strange tells whether a character has no place in the host of an origin or of a pattern, in
// the ASCII form that browsers send.
func strange(c rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.:[]*", c)
}

// allowed returns what the answer says about an origin, or an empty text.
func (c *cors) allowed(text string) string {
	asked, is := parseOrigin(text)
	for _, o := range c.origins {
		switch {
		case o.any && !c.credentials:
			return "*"
		case o.any:
			return text
		case !is || o.scheme != asked.scheme || o.port != asked.port:
		case o.wildcard && o.covers(asked.host):
			return text
		case !o.wildcard && o.host == asked.host:
			return text
		}
	}
	return ""
}

// covers tells whether a host has something in the place of the star, which is no address.
func (o *origin) covers(host string) bool {
	starred, is := strings.CutSuffix(host, o.host)
	return is && starred != "" && !strings.ContainsAny(starred, ":[]*")
}

// isPreflight tells whether a browser asks what it may send.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get(requestMethod) != ""
}

// apply puts what the filter says into the header of an answer, in the place of what the
// backend says. It returns false if the origin is not allowed.
func (c *cors) apply(r *http.Request, h http.Header) bool {
	asking := r.Header.Get("Origin")
	for _, name := range []string{
		allowOrigin, allowMethods, allowHeaders, allowCreds, exposeHeaders, maxAge,
	} {
		delete(h, name)
	}
	allowed := c.allowed(asking)
	if allowed != "*" && !slices.Contains(h["Vary"], "Origin") {
		h.Add("Vary", "Origin")
	}
	if asking == "" || allowed == "" {
		return false
	}
	h.Set(allowOrigin, allowed)
	if c.credentials {
		h.Set(allowCreds, "true")
	}
	if c.expose != "" {
		h.Set(exposeHeaders, c.expose)
	}
	return true
}

// preflight answers what a browser may send.
func (x *exchange) preflight(c *cors) {
	if c.allowed(x.r.Header.Get("Origin")) == "" {
		x.reply(http.StatusForbidden, "")
		return
	}
	h := x.w.Header()
	x.decorate(h)
	if c.anyMethod {
		h.Set(allowMethods, x.r.Header.Get(requestMethod))
	} else if c.methods != "" {
		h.Set(allowMethods, c.methods)
	}
	if asked := x.r.Header.Values(requestHeaders); c.anyHeader && len(asked) > 0 {
		h.Set(allowHeaders, strings.Join(asked, ", "))
	} else if !c.anyHeader && c.headers != "" {
		h.Set(allowHeaders, c.headers)
	}
	h.Set(maxAge, c.maxAge)
	x.w.WriteHeader(http.StatusNoContent)
}
