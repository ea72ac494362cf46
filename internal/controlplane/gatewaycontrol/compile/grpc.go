package compile

import (
	"regexp"

	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// anyPart is the expression for any service or method of gRPC.
const anyPart = "[^/]+"

// grpc translates the rules of a GRPCRoute.
func (t *translation) grpc(rules []gwv1.GRPCRouteRule) {
	t.count = len(rules)
	for i := range rules {
		rule := &rules[i]
		matches, wrong := grpcMatches(rule.Matches)
		if wrong.is() {
			t.drop(i, rule.Name, wrong)
			continue
		}
		translated, wrong := t.grpcRule(i, rule, matches)
		t.add(i, rule.Name, translated, wrong)
	}
}

// grpcRule translates a rule of a GRPCRoute.
func (t *translation) grpcRule(index int, rule *gwv1.GRPCRouteRule, matches []routing.Match) (routing.Rule, fault) {
	translated := routing.Rule{Name: string(ptr.Deref(rule.Name, "")), Matches: matches, GRPC: true}
	var wrong fault
	if translated.Filters, wrong = t.grpcFilters(rule.Filters); wrong.is() {
		return translated, wrong
	}
	if translated.Session, wrong = t.session(index, rule.SessionPersistence); wrong.is() {
		return translated, wrong
	}
	for i := range rule.BackendRefs {
		ref := &rule.BackendRefs[i]
		filters, wrong := t.grpcFilters(ref.Filters)
		if wrong.is() {
			return translated, wrong
		}
		target := t.target(&ref.BackendRef)
		target.Filters = filters
		translated.Targets = append(translated.Targets, target)
	}
	translated.Targets = t.targets(translated.Targets)
	return translated, fault{}
}

// grpcMatches translates the matches of a rule.
func grpcMatches(matches []gwv1.GRPCRouteMatch) ([]routing.Match, fault) {
	var found []routing.Match
	for i := range matches {
		match := &matches[i]
		translated, wrong := methodMatch(match.Method)
		if wrong.is() {
			return nil, wrong
		}
		for j := range match.Headers {
			header := &match.Headers[j]
			if translated.Headers, wrong = addHeaderMatch(translated.Headers, string(ptr.Deref(header.Type, "")), string(header.Name), header.Value); wrong.is() {
				return nil, wrong
			}
		}
		found = append(found, translated)
	}
	return found, fault{}
}

// methodMatch translates the match of a service and a method: gRPC has them in the path, as
// /SERVICE/METHOD.
func methodMatch(from *gwv1.GRPCMethodMatch) (routing.Match, fault) {
	if from == nil {
		return routing.Match{PathType: routing.PathPrefix, Path: "/"}, fault{}
	}
	service, method := ptr.Deref(from.Service, ""), ptr.Deref(from.Method, "")
	switch kind := ptr.Deref(from.Type, gwv1.GRPCMethodMatchExact); kind {
	case gwv1.GRPCMethodMatchExact:
	case gwv1.GRPCMethodMatchRegularExpression:
		match := routing.Match{PathType: routing.Regexp, Path: "/" + part(service) + "/" + part(method)}
		// Each part must be an expression of its own: the two together could be one that
		// neither of them is.
		for _, text := range []string{service, method, match.Path} {
			if wrong := checkRegexp(text); wrong.is() {
				return match, wrong
			}
		}
		return match, fault{}
	default:
		return routing.Match{}, unsupported("kedge knows no match of methods of the type %q", kind)
	}
	switch {
	case service == "" && method == "":
		return routing.Match{PathType: routing.PathPrefix, Path: "/"}, fault{}
	case service == "":
		return routing.Match{PathType: routing.Regexp, Path: "/" + anyPart + "/" + regexp.QuoteMeta(method)}, fault{}
	case method == "":
		return routing.Match{PathType: routing.PathPrefix, Path: "/" + service}, fault{}
	}
	return routing.Match{PathType: routing.Exact, Path: "/" + service + "/" + method}, fault{}
}

// part returns the expression for a service or a method.
func part(expression string) string {
	if expression == "" {
		return anyPart
	}
	return "(?:" + expression + ")"
}

// grpcFilters translates the filters of a rule of a GRPCRoute, or of one backend.
func (t *translation) grpcFilters(filters []gwv1.GRPCRouteFilter) ([]routing.Filter, fault) {
	var found []routing.Filter
	for i := range filters {
		translated, wrong := t.grpcFilter(&filters[i])
		if wrong.is() {
			return nil, wrong
		}
		found = append(found, translated...)
	}
	return found, fault{}
}

func (t *translation) grpcFilter(filter *gwv1.GRPCRouteFilter) ([]routing.Filter, fault) {
	switch {
	case filter.Type == gwv1.GRPCRouteFilterRequestHeaderModifier && filter.RequestHeaderModifier != nil:
		changes, wrong := headerChanges(filter.RequestHeaderModifier)
		return []routing.Filter{{RequestHeaders: changes}}, wrong
	case filter.Type == gwv1.GRPCRouteFilterResponseHeaderModifier && filter.ResponseHeaderModifier != nil:
		changes, wrong := headerChanges(filter.ResponseHeaderModifier)
		return []routing.Filter{{ResponseHeaders: changes}}, wrong
	case filter.Type == gwv1.GRPCRouteFilterRequestMirror && filter.RequestMirror != nil:
		return t.mirror(filter.RequestMirror)
	case filter.Type == gwv1.GRPCRouteFilterExtensionRef:
		return t.extension(filter.ExtensionRef), fault{}
	}
	return nil, unsupported("kedge has no filter %s", filter.Type)
}
