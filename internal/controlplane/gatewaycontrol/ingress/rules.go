package ingress

import (
	"slices"
	"strings"

	netv1 "k8s.io/api/networking/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// claim is a path of a host, which one Ingress has.
type claim struct {
	host     string
	pathType routing.MatchType
	path     string
}

// paths reads the rules of an Ingress.
func (c *compiler) paths(e *entry) {
	e.rules = map[string][]routing.Rule{}
	for _, rule := range e.Spec.Rules {
		if !c.mayServe(e, rule.Host) {
			continue
		}
		if !slices.Contains(e.hosts, rule.Host) {
			e.hosts = append(e.hosts, rule.Host)
		}
		if rule.HTTP == nil {
			continue // the default backend gets all requests to the host
		}
		for i := range rule.HTTP.Paths {
			path := &rule.HTTP.Paths[i]
			match, ok := matchOf(path)
			if !ok {
				c.fault(e, ReasonBadPath, "kedge leaves out the path %q of the host %q: it must begin with \"/\"", clip(path.Path), rule.Host)
				continue
			}
			of := claim{rule.Host, match.PathType, match.Path}
			if owner := c.claims[of]; owner != nil {
				if owner != e {
					c.fault(e, ReasonConflict, "The Ingress %s is older and has the path %q of the host %q, too: it gets the requests", nameOf(owner.Ingress), path.Path, rule.Host)
				}
				continue
			}
			made := c.rule(e, match, &path.Backend)
			if err := made.Check(new(int)); err != nil {
				c.fault(e, ReasonBadPath, "kedge leaves out the path %q of the host %q, which nodes cannot serve: %s", clip(path.Path), rule.Host, clip(err.Error()))
				continue
			}
			c.claims[of] = e
			e.rules[rule.Host] = append(e.rules[rule.Host], made)
		}
	}
	if len(e.Spec.Rules) == 0 && c.mayServe(e, "") {
		e.hosts = []string{""}
	}
	c.out.Served[e.Ingress] = len(e.hosts) > 0
}

// mayServe tells whether an Ingress may serve a host. If not, it tells why.
func (c *compiler) mayServe(e *entry, host string) bool {
	refusal := c.owners.Refusal(e.Namespace, host)
	if refusal != nil {
		c.fault(e, ReasonConflict, "%s", refusal.Loser())
	}
	return refusal == nil
}

// defaults gives the default backend of an Ingress what nobody else has asked for.
func (c *compiler) defaults(e *entry) {
	if e.Spec.DefaultBackend == nil {
		return
	}
	everything := routing.Match{PathType: routing.PathPrefix, Path: "/"}
	for _, host := range e.hosts {
		of := claim{host, everything.PathType, everything.Path}
		if c.claims[of] == nil {
			c.claims[of] = e
			e.rules[host] = append(e.rules[host], c.rule(e, everything, e.Spec.DefaultBackend))
		}
	}
}

// matchOf returns what a path matches. Of two matches the node takes the longer one, and an
// exact one first, as the documentation of Ingresses has it.
func matchOf(path *netv1.HTTPIngressPath) (match routing.Match, ok bool) {
	text := path.Path
	if path.PathType != nil && *path.PathType == netv1.PathTypeExact {
		return routing.Match{PathType: routing.Exact, Path: text}, strings.HasPrefix(text, "/")
	}
	// The slash at the end of a prefix has no meaning.
	if text = strings.TrimRight(text, "/"); text == "" {
		text = "/"
	}
	return routing.Match{PathType: routing.PathPrefix, Path: text}, strings.HasPrefix(text, "/")
}

// rule returns the rule for a match.
func (c *compiler) rule(e *entry, match routing.Match, backend *netv1.IngressBackend) routing.Rule {
	target := c.target(e, backend)
	if e.settings.closed {
		// The other settings may be what cannot be used.
		return routing.Rule{Matches: []routing.Match{match}, Split: routing.Split{Targets: []routing.Target{unavailable()}}, GRPC: e.settings.grpc}
	}
	return routing.Rule{
		Matches: []routing.Match{match},
		Split:   routing.Split{Targets: []routing.Target{target}},
		GRPC:    e.settings.grpc,
		Timeout: e.settings.timeout,
		MaxBody: e.settings.maxBody,
		Auth:    e.settings.auth,
	}
}

// routes makes a route for each host of an Ingress, and a second one for HTTP if this is
// redirected. A route has the host in its name, because its host names are those of all its
// rules.
func (c *compiler) routes(e *entry) {
	for _, host := range e.hosts {
		rules := e.rules[host]
		if len(rules) == 0 {
			continue
		}
		route := &routing.Route{Name: "Ingress/" + nameOf(e.Ingress), Created: e.CreationTimestamp.Time, SingleLabel: true, Rules: rules}
		name := route.Name + "/"
		if host != "" {
			route.Hostnames = []string{host}
			name += host
		}
		c.out.State.Routes[name] = route
		at := tenantHost{c.tenant(e), host}
		c.byHost[at] = append(c.byHost[at], name)
		if e.settings.redirect {
			plain := *route
			plain.Rules = redirected(rules)
			name += "/redirect"
			c.out.State.Routes[name] = &plain
		}
		c.plainByHost[at] = append(c.plainByHost[at], name)
	}
}

// redirected returns rules that send clients to HTTPS. They ask for no password, because
// clients would send it in plain text.
func redirected(rules []routing.Rule) []routing.Rule {
	var all []routing.Rule
	for _, rule := range rules {
		all = append(all, routing.Rule{
			Matches: rule.Matches,
			Filters: []routing.Filter{{Redirect: &routing.Redirect{Scheme: "https", Code: 308}}},
		})
	}
	return all
}

// plainRoutes returns the names of the routes of HTTP of each namespace with Ingresses. If hosts
// belong to nobody, the only namespace is empty.
func (c *compiler) plainRoutes() map[string][]string {
	names := map[string][]string{}
	for _, e := range c.entries {
		names[c.tenant(e)] = nil
	}
	for at, of := range c.plainByHost {
		names[at.namespace] = append(names[at.namespace], of...)
	}
	for _, of := range names {
		slices.Sort(of)
	}
	return names
}

// routesBelow returns the names of the routes of HTTPS below each wildcard of a namespace, and below
// "", which stands for all. So nothing looks at all hosts for each wildcard.
func (c *compiler) routesBelow() map[tenantHost][]string {
	below := map[tenantHost][]string{}
	for at, of := range c.byHost {
		for wider := range hosts.Wider(at.host) {
			if wide := (tenantHost{at.namespace, wider}); c.secured[wide] != nil {
				below[wide] = append(below[wide], of...)
			}
		}
	}
	return below
}

// routesOf returns the names of the routes that requests to a host of HTTPS may match, all of
// one namespace. The host may be a wildcard or "", which stands for all.
func (c *compiler) routesOf(at tenantHost, below map[tenantHost][]string) []string {
	names := slices.Concat(c.byHost[at], below[at])
	if at.host != "" {
		names = append(names, c.byHost[tenantHost{at.namespace, ""}]...)
	}
	if _, parent, found := strings.Cut(at.host, "."); found && !isWildcard(at.host) {
		names = append(names, c.byHost[tenantHost{at.namespace, "*." + parent}]...)
	}
	slices.Sort(names)
	return names
}

// isWildcard tells whether a host stands for several.
func isWildcard(host string) bool { return strings.HasPrefix(host, "*.") }
