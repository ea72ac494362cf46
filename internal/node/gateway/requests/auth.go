package requests

import (
	"net/http"
	"strings"
)

// authenticated tells whether the client has shown what the rule asks for. If not, the request
// is answered.
func (x *exchange) authenticated() bool {
	if x.rule.users == nil {
		return true
	}
	if name, password, given := x.r.BasicAuth(); given {
		is, err := x.rule.users.Check(x.r.Context(), x.client.network(), name, password)
		if err != nil {
			x.w.Header().Set("Retry-After", "5")
			x.fail(http.StatusServiceUnavailable)
			return false
		}
		if is {
			return true
		}
	}
	x.w.Header().Set("WWW-Authenticate", `Basic realm="`+quoted(x.rule.realm)+`", charset="UTF-8"`)
	x.fail(http.StatusUnauthorized)
	return false
}

// quoted returns a text that may stand in a quoted string of a header.
func quoted(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return ' '
		}
		return c
	}, text)
}
