package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// maxAttempts is how often a request may be repeated. Each repetition is one more request to a
// backend that is perhaps overloaded.
const maxAttempts = 10

// http translates the rules of an HTTPRoute.
func (t *translation) http(rules []gwv1.HTTPRouteRule) {
	t.count = len(rules)
	for i := range rules {
		rule := &rules[i]
		matches, wrong := httpMatches(rule.Matches)
		if wrong.is() {
			t.drop(i, rule.Name, wrong)
			continue
		}
		translated, wrong := t.httpRule(i, rule, matches)
		t.add(i, rule.Name, translated, wrong)
	}
}

// httpRule translates a rule of an HTTPRoute.
func (t *translation) httpRule(index int, rule *gwv1.HTTPRouteRule, matches []routing.Match) (routing.Rule, fault) {
	translated := routing.Rule{Name: string(ptr.Deref(rule.Name, "")), Matches: matches}
	var wrong fault
	if translated.Filters, wrong = t.httpFilters(rule.Filters, matches); wrong.is() {
		return translated, wrong
	}
	if timeouts := rule.Timeouts; timeouts != nil {
		if translated.Timeout, wrong = duration(timeouts.Request); wrong.is() {
			return translated, wrong
		}
		if translated.BackendTimeout, wrong = duration(timeouts.BackendRequest); wrong.is() {
			return translated, wrong
		}
	}
	if translated.Retry, wrong = retry(rule.Retry); wrong.is() {
		return translated, wrong
	}
	if translated.Session, wrong = t.session(index, rule.SessionPersistence); wrong.is() {
		return translated, wrong
	}
	for i := range rule.BackendRefs {
		ref := &rule.BackendRefs[i]
		filters, wrong := t.httpBackendFilters(ref.Filters, matches)
		if wrong.is() {
			return translated, wrong
		}
		target := t.target(&ref.BackendRef)
		target.Filters = filters
		translated.Targets = append(translated.Targets, target)
	}
	if !redirects(translated.Filters) {
		translated.Targets = t.targets(translated.Targets)
	}
	return translated, fault{}
}

// redirects tells whether a filter answers all requests with another place.
func redirects(filters []routing.Filter) bool {
	return slices.ContainsFunc(filters, func(filter routing.Filter) bool { return filter.Redirect != nil })
}

// httpMatches translates the matches of a rule.
func httpMatches(matches []gwv1.HTTPRouteMatch) ([]routing.Match, fault) {
	var found []routing.Match
	for i := range matches {
		match := &matches[i]
		translated, wrong := pathMatch(match.Path)
		if wrong.is() {
			return nil, wrong
		}
		if match.Method != nil {
			if !isMethod(*match.Method) {
				return nil, unsupported("there is no method %q", *match.Method)
			}
			translated.Method = string(*match.Method)
		}
		for j := range match.Headers {
			header := &match.Headers[j]
			if translated.Headers, wrong = addHeaderMatch(translated.Headers, string(ptr.Deref(header.Type, "")), string(header.Name), header.Value); wrong.is() {
				return nil, wrong
			}
		}
		for j := range match.QueryParams {
			param := &match.QueryParams[j]
			if hasField(translated.Query, func(name string) bool { return name == string(param.Name) }) {
				continue // the first one counts
			}
			field, wrong := fieldMatch(string(ptr.Deref(param.Type, "")), string(param.Name), param.Value)
			if wrong.is() {
				return nil, wrong
			}
			translated.Query = append(translated.Query, field)
		}
		found = append(found, translated)
	}
	return found, fault{}
}

// pathMatch translates the match of a path.
func pathMatch(path *gwv1.HTTPPathMatch) (routing.Match, fault) {
	if path == nil {
		return routing.Match{PathType: routing.PathPrefix, Path: "/"}, fault{}
	}
	match := routing.Match{Path: ptr.Deref(path.Value, "/")}
	switch kind := ptr.Deref(path.Type, gwv1.PathMatchPathPrefix); kind {
	case gwv1.PathMatchExact:
		match.PathType = routing.Exact
	case gwv1.PathMatchPathPrefix:
		match.PathType = routing.PathPrefix
	case gwv1.PathMatchRegularExpression:
		match.PathType = routing.Regexp
		return match, checkRegexp(match.Path)
	default:
		return match, unsupported("kedge knows no match of paths of the type %q", kind)
	}
	if !strings.HasPrefix(match.Path, "/") {
		return match, unsupported("the path %q does not begin with a slash", match.Path)
	}
	return match, fault{}
}

func isMethod(method gwv1.HTTPMethod) bool {
	switch method {
	case gwv1.HTTPMethodGet, gwv1.HTTPMethodHead, gwv1.HTTPMethodPost, gwv1.HTTPMethodPut, gwv1.HTTPMethodDelete,
		gwv1.HTTPMethodConnect, gwv1.HTTPMethodOptions, gwv1.HTTPMethodTrace, gwv1.HTTPMethodPatch:
		return true
	}
	return false
}

// addHeaderMatch adds the match of a header, unless there is one for the same header.
func addHeaderMatch(to []routing.Field, kind, name, value string) ([]routing.Field, fault) {
	if hasField(to, func(known string) bool { return strings.EqualFold(known, name) }) {
		return to, fault{} // the first one counts
	}
	field, wrong := fieldMatch(kind, name, value)
	return append(to, field), wrong
}

func hasField(fields []routing.Field, is func(name string) bool) bool {
	return slices.ContainsFunc(fields, func(field routing.Field) bool { return is(field.Name) })
}

// fieldMatch translates the match of a header or of a parameter. All kinds of routes have the
// same words for its types.
func fieldMatch(kind, name, value string) (routing.Field, fault) {
	field := routing.Field{Type: routing.Exact, Name: name, Value: value}
	switch kind {
	case "", string(gwv1.HeaderMatchExact):
		return field, fault{}
	case string(gwv1.HeaderMatchRegularExpression):
		field.Type = routing.Regexp
		return field, checkRegexp(value)
	}
	return field, unsupported("kedge knows no match of the type %q for %s", kind, name)
}

// duration reads a duration. Zero is without a limit, as if there were none.
func duration(text *gwv1.Duration) (time.Duration, fault) {
	if text == nil {
		return 0, fault{}
	}
	read, err := time.ParseDuration(string(*text))
	if err != nil || !isDuration(string(*text)) {
		return 0, unsupported("%q is not a duration of the Gateway API: write it like 1h30m or 500ms", *text)
	}
	return read, fault{}
}

// isDuration tells whether a text is a duration of the Gateway API (GEP-2257): one to four
// numbers of up to five digits, each with the unit h, m, s or ms. Go knows more.
func isDuration(text string) bool {
	for range 4 {
		rest := strings.TrimLeft(text, "0123456789")
		if digits := len(text) - len(rest); digits < 1 || digits > 5 {
			return false
		}
		known := false
		for _, unit := range []string{"ms", "h", "m", "s"} {
			if text, known = strings.CutPrefix(rest, unit); known {
				break
			}
		}
		if !known || text == "" {
			return known
		}
	}
	return false
}

// retry translates how requests are repeated.
func retry(from *gwv1.HTTPRouteRetry) (*routing.Retry, fault) {
	if from == nil {
		return nil, fault{}
	}
	translated := &routing.Retry{Attempts: ptr.Deref(from.Attempts, 1)}
	if translated.Attempts < 1 || translated.Attempts > maxAttempts {
		return nil, unsupported("a request cannot be repeated %d times: set retry.attempts to a number from 1 to %d", translated.Attempts, maxAttempts)
	}
	for _, code := range from.Codes {
		if code < 400 || code > 599 {
			return nil, unsupported("a request cannot be repeated after the status %d: retry.codes are from 400 to 599", code)
		}
		translated.Codes = append(translated.Codes, int(code))
	}
	var wrong fault
	translated.Backoff, wrong = duration(from.Backoff)
	return translated, wrong
}

// session translates session persistence. A session without a name gets one that is the same
// in all nodes, and different from those of other rules.
func (t *translation) session(index int, from *gwv1.SessionPersistence) (*routing.Session, fault) {
	if from == nil {
		return nil, fault{}
	}
	translated := &routing.Session{Name: ptr.Deref(from.SessionName, "")}
	if translated.Name == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", t.route.name(), index))
		translated.Name = "kedge-session-" + hex.EncodeToString(sum[:4])
	}
	if !httpguts.ValidHeaderFieldName(translated.Name) {
		return nil, unsupported("%q cannot be the name of a cookie or of a header", translated.Name)
	}
	switch kind := ptr.Deref(from.Type, gwv1.CookieBasedSessionPersistence); kind {
	case gwv1.CookieBasedSessionPersistence:
	case gwv1.HeaderBasedSessionPersistence:
		translated.Header = true
	default:
		return nil, unsupported("kedge knows no session persistence of the type %q", kind)
	}
	var wrong fault
	if translated.Absolute, wrong = duration(from.AbsoluteTimeout); wrong.is() {
		return nil, wrong
	}
	if from.CookieConfig == nil || translated.Header {
		return translated, fault{}
	}
	switch kind := ptr.Deref(from.CookieConfig.LifetimeType, gwv1.SessionCookieLifetimeType); kind {
	case gwv1.SessionCookieLifetimeType:
	case gwv1.PermanentCookieLifetimeType:
		if translated.Absolute == 0 {
			return nil, unsupported("a permanent cookie needs sessionPersistence.absoluteTimeout")
		}
		translated.Permanent = true
	default:
		return nil, unsupported("kedge knows no lifetime of cookies of the type %q", kind)
	}
	return translated, fault{}
}
