package requests

import (
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/htpasswd"
)

// route is a compiled route.
type route struct {
	// source is what the route was compiled from. As long as a state has the same one, the
	// compiled route stays.
	source  *routing.Route
	name    string
	created time.Time
	rules   []*rule
	matches []*match
	stats   *stats
}

// rule is a compiled rule: what happens to the requests that it takes.
type rule struct {
	route *route
	grpc  bool
	filters
	targets []target
	// weights is the sum of the weights of the targets.
	weights                 int
	session                 *routing.Session
	timeout, backendTimeout time.Duration
	retry                   *routing.Retry
	maxBody                 int64
	// users is nil if clients need no password.
	users *htpasswd.Users
	realm string
	// rights are compared with those of other rules of the host.
	rights rights
}

// target is a compiled target.
type target struct {
	// backend is nil if the target has none.
	backend *backend
	fault   int
	weight  int
	filters
}

// compileRoute compiles a route for HTTP. The function backendOf returns the backend of a name,
// which need not exist.
func compileRoute(from *routing.Route, backendOf func(name string) *backend, passwords *htpasswd.Checker) *route {
	r := &route{source: from, name: from.Name, created: from.Created}
	for i := range from.Rules {
		source := &from.Rules[i]
		compiled := &rule{
			route: r, grpc: source.GRPC, filters: compileFilters(source.Filters, backendOf), session: source.Session,
			timeout: source.Timeout, backendTimeout: source.BackendTimeout, retry: source.Retry, maxBody: source.MaxBody,
		}
		users := ""
		if source.Auth != nil {
			users = source.Auth.Users
			compiled.users, compiled.realm = passwords.Parse(from.Namespace(), from.Name, users), source.Auth.Realm
		}
		for j := range source.Targets {
			t := &source.Targets[j]
			next := target{fault: t.Fault, weight: max(t.Weight, 0), filters: compileFilters(t.Filters, backendOf)}
			if t.Backend != "" {
				next.backend = backendOf(t.Backend)
			}
			compiled.targets = append(compiled.targets, next)
			compiled.weights += next.weight
		}
		compiled.rights = rightsOf(compiled, users)
		r.rules = append(r.rules, compiled)

		matches := source.Matches
		if len(matches) == 0 {
			matches = []routing.Match{{PathType: routing.PathPrefix, Path: "/"}}
		}
		for j := range matches {
			if m, is := newMatch(compiled, &matches[j], len(r.matches)); is {
				r.matches = append(r.matches, m)
			}
		}
	}
	return r
}

// backends calls the function with each backend that the route refers to.
func (r *route) backends(each func(*backend)) {
	mirrors := func(f *filters) {
		for i := range f.mirrors {
			each(f.mirrors[i].backend)
		}
	}
	for _, rule := range r.rules {
		mirrors(&rule.filters)
		for i := range rule.targets {
			if rule.targets[i].backend != nil {
				each(rule.targets[i].backend)
			}
			mirrors(&rule.targets[i].filters)
		}
	}
}

// cookiePath returns the path that the cookie of a session is for.
func (m *match) cookiePath() string {
	if m.kind == routing.Regexp || m.path == "" || strings.ContainsAny(m.path, "%; \t\"\\") || !isSafe(m.path) {
		return "/"
	}
	return m.path
}
