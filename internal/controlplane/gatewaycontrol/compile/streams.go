package compile

import (
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// tls translates the rules of a TLSRoute.
func (t *translation) tls(rules []gwv1.TLSRouteRule) {
	for i := range rules {
		t.connections(i, rules[i].Name, rules[i].BackendRefs)
	}
}

// tcp translates the rules of a TCPRoute.
func (t *translation) tcp(rules []gwv1.TCPRouteRule) {
	for i := range rules {
		t.connections(i, rules[i].Name, rules[i].BackendRefs)
	}
}

// udp translates the rules of a UDPRoute.
func (t *translation) udp(rules []gwv1.UDPRouteRule) {
	for i := range rules {
		t.connections(i, rules[i].Name, rules[i].BackendRefs)
	}
}

// connections translates a rule of a route for connections. Such rules have no matches, so only
// the first one can serve.
func (t *translation) connections(index int, name *gwv1.SectionName, refs []gwv1.BackendRef) {
	t.count++
	if t.stream != nil {
		t.drop(index, name, unsupported("a %s has only one rule", t.route.kind))
		return
	}
	targets := make([]routing.Target, 0, len(refs))
	for i := range refs {
		targets = append(targets, t.target(&refs[i]))
	}
	t.stream = &routing.Split{Targets: t.targets(targets)}
	if wrong := t.fits(&routing.Rule{Split: *t.stream}); wrong.is() {
		t.drop(index, name, wrong)
		t.stream = &routing.Split{Targets: t.targets(nil)}
	}
}
