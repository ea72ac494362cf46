package compile

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// attaching goes through the routes, older ones first, and attaches them to listeners.
type attaching struct {
	*compiler
	byParent map[parent][]*listener
	// claims are the host names that HTTPRoutes and GRPCRoutes have on a listener.
	claims map[*listener]map[gwv1.Kind]*names
	// taken are the listeners of TCP and UDP that have a route.
	taken map[*listener]bool
}

// attach attaches a route, and reports its status.
func (a *attaching) attach(r *route) {
	var own []gwv1.RouteParentStatus
	var attached []*listener
	for i := range r.parents {
		ref := &r.parents[i]
		listeners, ours := a.byParent[parentOf(ref, r.object.GetNamespace())]
		if !ours {
			continue
		}
		t := r.translation(a.compiler, variant{})
		found, refusal := a.match(r, ref, listeners)
		if !refusal.is() {
			refusal = r.badHostname()
		}
		if !refusal.is() {
			refusal = t.refusal()
		}
		own = append(own, r.parentStatus(ref, refusal, a.exceptions(r, found), t))
		if refusal.is() {
			continue
		}
		for _, l := range found {
			if !slices.Contains(attached, l) {
				attached = append(attached, l)
			}
		}
	}
	r.reportStatus(own)
	for _, l := range attached {
		a.take(r, l)
	}
}

// exceptions says which host names of a route the listeners that take it do not serve, because they
// are another namespace's.
func (a *attaching) exceptions(r *route, listeners []*listener) string {
	var texts []string
	for _, l := range listeners {
		if wrong, _ := a.refusedHosts(r, l); wrong.is() && !slices.Contains(texts, wrong.message) {
			texts = append(texts, wrong.message)
		}
	}
	return strings.Join(texts, "; ")
}

// match returns the listeners that a reference of a route means, and that take the route. If
// there is none, it says why.
func (a *attaching) match(r *route, ref *gwv1.ParentReference, listeners []*listener) ([]*listener, fault) {
	chosen, refusal := a.candidates(r, ref, listeners)
	if refusal.is() {
		return nil, refusal
	}
	var conflict fault
	chosen = choose(chosen, func(l *listener) bool {
		other, some := a.refusedHosts(r, l)
		if some {
			other = a.claimed(r, l)
		}
		conflict = conflict.and(other)
		return !other.is()
	})
	if len(chosen) == 0 {
		return nil, conflict
	}
	return chosen, fault{}
}

// candidates returns the listeners that a reference of a route means, and that would take the
// route if nobody else had its host names. If there is none, it says why.
func (c *compiler) candidates(r *route, ref *gwv1.ParentReference, listeners []*listener) ([]*listener, fault) {
	object := parentOf(ref, r.object.GetNamespace())
	chosen := choose(listeners, func(l *listener) bool {
		return (ref.SectionName == nil || *ref.SectionName == l.name) && (ref.Port == nil || *ref.Port == l.port)
	})
	if len(chosen) == 0 {
		return nil, faultOf(gwv1.RouteReasonNoMatchingParent, "%s has no listener%s", object, describeSection(ref))
	}

	chosen = choose(chosen, func(l *listener) bool { return l.takes(r.kind) })
	if len(chosen) == 0 {
		return nil, faultOf(gwv1.RouteReasonNotAllowedByListeners,
			"the listeners of %s take no %s: see their protocol and allowedRoutes.kinds", object, r.kind)
	}
	namespace := c.in.Namespace(r.object.GetNamespace())
	chosen = choose(chosen, func(l *listener) bool { return l.admits(namespace) })
	if len(chosen) == 0 {
		return nil, faultOf(gwv1.RouteReasonNotAllowedByListeners,
			"the listeners of %s take no routes from namespace %s: see their allowedRoutes.namespaces", object, r.object.GetNamespace())
	}

	chosen = choose(chosen, func(l *listener) bool { return len(r.effective(l)) > 0 })
	if len(chosen) == 0 {
		return nil, faultOf(gwv1.RouteReasonNoMatchingListenerHostname,
			"no host name of the route fits a listener of %s", object)
	}
	return chosen, fault{}
}

// take attaches a route to a listener.
func (a *attaching) take(r *route, l *listener) {
	l.attached++
	a.claim(r, l)
	a.backendTLS.use(r.translationFor(a.compiler, l).uses, l.gateway)
	if r.kind == tcpRoute || r.kind == udpRoute {
		// A connection shows nothing by which one of several routes could be chosen. All are
		// attached, and the oldest one serves.
		if a.taken[l] {
			return
		}
		a.taken[l] = true
	}
	if l.usable {
		a.serveRoute(r, l)
	}
}

// claimed says whether an older route of the other kind of HTTP has host names of a route. Of
// an HTTPRoute and a GRPCRoute whose host names overlap on a listener, exactly one is accepted.
func (a *attaching) claimed(r *route, l *listener) fault {
	taken := a.claims[l][otherKind(r.kind)]
	if taken == nil {
		return fault{}
	}
	for _, hostname := range r.effective(l) {
		if owner := taken.overlap(hostname); owner != "" {
			return faultOf(hostnameConflict,
				"on listener %s, host names are also those of the older %s: an HTTPRoute and a GRPCRoute on one listener must have different ones",
				l.name, owner)
		}
	}
	return fault{}
}

// claim gives the host names of a route to it.
func (a *attaching) claim(r *route, l *listener) {
	if otherKind(r.kind) == "" || len(a.in.HTTPRoutes) == 0 || len(a.in.GRPCRoutes) == 0 {
		return
	}
	name := r.name()
	if a.claims[l] == nil {
		a.claims[l] = map[gwv1.Kind]*names{}
	}
	if a.claims[l][r.kind] == nil {
		a.claims[l][r.kind] = newNames()
	}
	for _, hostname := range r.effective(l) {
		a.claims[l][r.kind].add(hostname, name)
	}
}

// otherKind returns the kind of routes that must not have the same host names, or "".
func otherKind(kind gwv1.Kind) gwv1.Kind {
	switch kind {
	case httpRoute:
		return grpcRoute
	case grpcRoute:
		return httpRoute
	}
	return ""
}

// effective returns the host names that a route has on a listener. A route without host names
// has that of the listener.
func (r *route) effective(l *listener) []string {
	if len(r.hostnames) == 0 {
		return []string{l.hostname}
	}
	var found []string
	for _, hostname := range r.hostnames {
		if both, fits := intersection(l.hostname, string(hostname)); fits {
			found = append(found, both)
		}
	}
	return found
}

// badHostname says which host name of a route none can have. The API server refuses such
// names, unless somebody has changed the definition of the kind.
func (r *route) badHostname() fault {
	for _, hostname := range r.hostnames {
		if !hosts.Valid(string(hostname)) {
			return unsupported("%q is not a host name: use lower-case letters, digits, \"-\" and \".\", at most %d of them",
				hostname, validation.DNS1123SubdomainMaxLength)
		}
	}
	return fault{}
}

// takes tells whether a listener takes routes of a kind.
func (l *listener) takes(kind gwv1.Kind) bool {
	return slices.ContainsFunc(l.kinds, func(allowed gwv1.RouteGroupKind) bool {
		return allowed.Kind == kind && (allowed.Group == nil || *allowed.Group == gwv1.GroupName)
	})
}

// choose returns the listeners for which is says true.
func choose(from []*listener, is func(*listener) bool) []*listener {
	var found []*listener
	for _, l := range from {
		if is(l) {
			found = append(found, l)
		}
	}
	return found
}

func describeSection(ref *gwv1.ParentReference) string {
	var text string
	if ref.SectionName != nil {
		text += fmt.Sprintf(" with the name %s", *ref.SectionName)
	}
	if ref.Port != nil {
		text += fmt.Sprintf(" at port %d", *ref.Port)
	}
	return text
}
