package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// variant is how the backends of a route are reached, as far as it depends on the listener. The
// zero variant is that of most routes.
type variant struct {
	// certificate is the name of the certificate that the Gateway shows to backends.
	certificate string
	// passthrough says that the TLS of the client goes on to the backend.
	passthrough bool
}

// translation is what the rules of a route mean.
type translation struct {
	c       *compiler
	route   *route
	variant variant

	rules  []routing.Rule
	stream *routing.Split
	// regexps is how large the regular expressions of rules are together: see fits.
	regexps int
	// backends are the names of the backends that the rules use.
	backends []string
	// uses are the ports of Services that BackendTLSPolicies may be for.
	uses []policyTarget

	// count is how many rules the route has, and broken how many of them are in dropped.
	count, broken int
	// dropped are the rules that cannot be used.
	dropped faults
	// unresolved are references that cannot be used.
	unresolved faults
}

// translation returns what the rules of a route mean.
func (r *route) translation(c *compiler, v variant) *translation {
	for _, t := range r.translations {
		if t.variant == v {
			return t
		}
	}
	t := &translation{c: c, route: r, variant: v}
	r.translate(t)
	r.translations = append(r.translations, t)
	return t
}

// translationFor returns what the rules of a route mean on a listener.
func (r *route) translationFor(c *compiler, l *listener) *translation {
	plain := r.translation(c, variant{})
	if len(plain.uses) == 0 {
		return plain // without TLS to backends, all listeners are alike
	}
	if r.kind == tlsRoute && l.tlsMode == gwv1.TLSModePassthrough {
		return r.translation(c, variant{passthrough: true})
	}
	return r.translation(c, variant{certificate: c.clientCertificates[l.gateway]})
}

// name is the name of the route in State. It is that of the route alone, unless listeners need
// the route in several variants.
func (t *translation) name() string {
	name := t.route.name()
	if t.variant.passthrough {
		name += "+passthrough"
	}
	if t.variant.certificate != "" {
		name += "+certificate+" + t.variant.certificate
	}
	return name
}

// add adds the translation of a rule. If the rule cannot be used, one that is closed takes its
// place.
func (t *translation) add(index int, name *gwv1.SectionName, rule routing.Rule, wrong fault) {
	if !wrong.is() {
		wrong = t.fits(&rule)
	}
	if wrong.is() {
		t.drop(index, name, wrong)
		rule = closed(&rule)
		if t.fits(&rule).is() {
			return // nodes do not accept the matches
		}
	}
	t.rules = append(t.rules, rule)
}

// closed returns a rule that answers every request with an error. It stands in for a rule that
// cannot be used, but whose matches are known. If there were no rule, its requests would go to
// one that is less specific, and pass by a filter that somebody relies on.
func closed(rule *routing.Rule) routing.Rule {
	return routing.Rule{Name: rule.Name, Matches: rule.Matches, Filters: []routing.Filter{{Fault: 500}}, GRPC: rule.GRPC}
}

// fits tells whether nodes accept a rule in addition to those before it. A node that gets a
// single rule that it does not accept refuses everything.
func (t *translation) fits(rule *routing.Rule) fault {
	regexps := t.regexps
	if err := rule.Check(&regexps); err != nil {
		return unsupported("change the rule, which nodes cannot serve: %v", err)
	}
	t.regexps = regexps
	return fault{}
}

// drop notes that a rule cannot be used.
func (t *translation) drop(index int, name *gwv1.SectionName, why fault) {
	t.broken++
	place := fmt.Sprintf("rules[%d]", index)
	if name != nil {
		place += " (" + string(*name) + ")"
	}
	t.dropped.add(fault{why.reason, place + ": " + why.message})
}

// refusal says why the route as a whole cannot be used: no rule of it can.
func (t *translation) refusal() fault {
	if t.broken == 0 || t.broken < t.count {
		return fault{}
	}
	return t.dropped.fault()
}

// unsupported is what is wrong with a value that kedge does not know.
func unsupported(format string, arguments ...any) fault {
	return faultOf(gwv1.RouteReasonUnsupportedValue, format, arguments...)
}

// maxFaults is how many faults the message of a condition tells in words.
const maxFaults = 8

// faults collects faults for one condition. The reason is that of the first one.
type faults struct {
	reason   string
	messages []string
	more     int
}

func (f *faults) add(one fault) {
	f.reason = cmp.Or(f.reason, one.reason)
	switch {
	case slices.Contains(f.messages, one.message):
	case len(f.messages) < maxFaults:
		f.messages = append(f.messages, one.message)
	default:
		f.more++
	}
}

func (f *faults) fault() fault {
	message := strings.Join(f.messages, "; ")
	if f.more > 0 {
		message += fmt.Sprintf("; and %d more", f.more)
	}
	return fault{f.reason, message}
}
