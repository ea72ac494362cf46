package requests

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// match is one of the alternatives by which a rule takes requests.
type match struct {
	rule *rule
	// kind and path say which paths fit. The path of a prefix has no slash at its end.
	kind       routing.MatchType
	path       string
	expression *regexp.Regexp
	method     string
	headers    []condition
	query      []condition
	// index is the place of the match in its route.
	index int
}

// condition is what a header or a parameter must be.
type condition struct {
	name       string
	value      string
	expression *regexp.Regexp
}

func (c *condition) holds(value string) bool {
	if c.expression != nil {
		return c.expression.MatchString(value)
	}
	return c.value == value
}

// newMatch compiles a match. It returns false if the match has a faulty or a too large regular
// expression: then no request fits.
func newMatch(r *rule, from *routing.Match, index int) (*match, bool) {
	m := &match{rule: r, kind: from.PathType, path: from.Path, method: from.Method, index: index}
	switch m.kind {
	case routing.Regexp:
		var err error
		if m.expression, err = routing.CompileRegexp(m.path); err != nil {
			return nil, false
		}
	case routing.Exact:
		m.path = plainPath(m.path)
	default:
		m.kind = routing.PathPrefix
		m.path = strings.TrimSuffix(plainPath(m.path), "/")
	}
	var headers, query bool
	m.headers, headers = conditions(from.Headers, http.CanonicalHeaderKey)
	m.query, query = conditions(from.Query, func(name string) string { return name })
	return m, headers && query
}

// plainPath returns the path of a rule in the form that paths of requests are compared in.
func plainPath(of string) string {
	parsed, err := parsePath(rooted(of))
	if err != nil {
		return of // no request fits
	}
	return parsed.match
}

// conditions compiles fields. Of two with the same name, the first one counts.
func conditions(fields []routing.Field, canonical func(string) string) ([]condition, bool) {
	all := make([]condition, 0, len(fields))
	for i := range fields {
		c := condition{name: canonical(fields[i].Name), value: fields[i].Value}
		if slices.ContainsFunc(all, func(other condition) bool { return other.name == c.name }) {
			continue
		}
		if fields[i].Type == routing.Regexp {
			var err error
			if c.expression, err = routing.CompileRegexp(c.value); err != nil {
				return nil, false
			}
		}
		all = append(all, c)
	}
	return all, true
}

// question is what a match is asked about.
type question struct {
	path     string
	method   string
	host     string
	header   http.Header
	rawQuery string
	// deep says that the wildcard of the host name stands for several labels.
	deep bool
	// parameters are those of rawQuery, once they were needed.
	parameters url.Values
}

// fits tells whether a request fits. If the match has a path that is not a regular expression, find has
// compared it already.
func (m *match) fits(q *question) bool {
	if m.expression != nil && !m.expression.MatchString(q.path) {
		return false
	}
	if m.method != "" && m.method != q.method || q.deep && m.rule.route.source.SingleLabel {
		return false
	}
	for i := range m.headers {
		c := &m.headers[i]
		values := q.header[c.name]
		switch {
		case c.name == "Host":
			if !c.holds(q.host) {
				return false
			}
		case len(values) == 0:
			return false
		case len(values) == 1:
			if !c.holds(values[0]) {
				return false
			}
		// RFC 9110, section 5.3: a repeated header is a list.
		case !c.holds(strings.Join(values, ",")):
			return false
		}
	}
	if len(m.query) > 0 && q.parameters == nil {
		q.parameters, _ = url.ParseQuery(q.rawQuery)
	}
	for i := range m.query {
		c := &m.query[i]
		// Of a repeated parameter, the first value counts, as the standard recommends.
		if values := q.parameters[c.name]; len(values) == 0 || !c.holds(values[0]) {
			return false
		}
	}
	return true
}

// compareMatches orders matches of the same path: the first one that fits wins.
// Source: HTTPRouteRule.Matches and GRPCRouteRule.Matches of the Gateway API.
func compareMatches(a, b *match) int {
	specific := func(m *match) int {
		if m.method != "" {
			return 1
		}
		return 0
	}
	return cmp.Or(
		specific(b)-specific(a),
		len(b.headers)-len(a.headers),
		len(b.query)-len(a.query),
		a.rule.route.created.Compare(b.rule.route.created),
		cmp.Compare(a.rule.route.name, b.rule.route.name),
		a.index-b.index,
	)
}

// rules are the matches for a host name, by path. Exact paths come first, then regular
// expressions, then prefixes, the longest first. The standard leaves the place of regular
// expressions open: after prefixes, one would never be asked if there is a rule for "/".
//
// A regular expression of a GRPCRoute is one for a method of all services. The standard puts
// it after those of a service, which are prefixes.
type rules struct {
	// suffix is what follows the star of the host name, or empty if that has none.
	suffix      string
	exact       byPath
	expressions []*match
	prefixes    byPath
	methods     []*match
	everything  []*match
	// rights are those of the matches, each once, and two at most.
	rights []rights
	// longest is the length of the longest prefix.
	longest int
}

// byPath are matches in the order of their paths, and of compareMatches. Most hosts have few, and a map for
// each of thousands of hosts would take much memory.
type byPath []*match

// first returns the first match of a path that fits, or nil.
func (p byPath) first(path string, q *question) *match {
	at, _ := slices.BinarySearchFunc(p, path, func(m *match, path string) int { return strings.Compare(m.path, path) })
	for ; at < len(p) && p[at].path == path; at++ {
		if p[at].fits(q) {
			return p[at]
		}
	}
	return nil
}

func newRules(hostname string) *rules {
	r := &rules{}
	if suffix, is := strings.CutPrefix(hostname, "*"); is {
		r.suffix = suffix
	}
	return r
}

// isDeep tells whether the wildcard stands for more than one label of a host that fits.
func (r *rules) isDeep(host string) bool {
	return r.suffix != "" && strings.IndexByte(host[:len(host)-len(r.suffix)], '.') >= 0
}

func (r *rules) add(m *match) {
	r.note(m.rule.rights)
	switch {
	case m.kind == routing.Exact:
		r.exact = append(r.exact, m)
	case m.kind == routing.Regexp && m.rule.grpc:
		r.methods = append(r.methods, m)
	case m.kind == routing.Regexp:
		r.expressions = append(r.expressions, m)
	case m.path == "":
		r.everything = append(r.everything, m)
	default:
		r.prefixes = append(r.prefixes, m)
		r.longest = max(r.longest, len(m.path))
	}
}

// sort puts the matches in their order. It is called after the last one was added.
func (r *rules) sort() {
	for _, list := range []byPath{r.exact, r.prefixes} {
		slices.SortFunc(list, func(a, b *match) int { return cmp.Or(strings.Compare(a.path, b.path), compareMatches(a, b)) })
	}
	slices.SortFunc(r.everything, compareMatches)
	for _, list := range [][]*match{r.expressions, r.methods} {
		slices.SortFunc(list, func(a, b *match) int {
			return cmp.Or(len(b.path)-len(a.path), compareMatches(a, b))
		})
	}
}

// find returns the match that wins, or nil.
func (r *rules) find(q *question) *match {
	if m := r.exact.first(q.path, q); m != nil {
		return m
	}
	if m := first(r.expressions, q); m != nil {
		return m
	}
	// A prefix ends where a segment of the path ends.
	for end := len(q.path); end > 0; {
		if end <= r.longest {
			if m := r.prefixes.first(q.path[:end], q); m != nil {
				return m
			}
			end = strings.LastIndexByte(q.path[:end], '/')
		} else {
			end = strings.LastIndexByte(q.path[:min(end, r.longest+1)], '/')
		}
	}
	if m := first(r.methods, q); m != nil {
		return m
	}
	return first(r.everything, q)
}

func first(list []*match, q *question) *match {
	for _, m := range list {
		if m.fits(q) {
			return m
		}
	}
	return nil
}
