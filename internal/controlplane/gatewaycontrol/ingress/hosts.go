package ingress

import (
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// Claims returns the hosts that the Ingresses want: those of the rules and those of spec.tls. An
// Ingress without rules wants all hosts.
func (r *Run) Claims() []hosts.Claim {
	var claims []hosts.Claim
	for _, e := range r.c.entries {
		var wanted []string
		for i := range e.Spec.Rules {
			wanted = append(wanted, e.Spec.Rules[i].Host)
		}
		for i := range e.Spec.TLS {
			wanted = append(wanted, e.Spec.TLS[i].Hosts...)
		}
		if len(e.Spec.Rules) == 0 {
			wanted = append(wanted, "")
		}
		slices.Sort(wanted)
		for _, host := range slices.Compact(wanted) {
			claims = append(claims, hosts.Claim{
				Host: strings.ToLower(host), Namespace: e.Namespace, Kind: "Ingress", Object: e.Ingress, Since: e.CreationTimestamp.Time,
			})
		}
	}
	return claims
}
