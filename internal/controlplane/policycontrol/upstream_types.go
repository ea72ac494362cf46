// Follows k8s.io/kubernetes v1.37.2, pkg/apis/networking/v1/defaults.go.

package policycontrol

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// direct tells whether a policy isolates pods in each direction. The API server sets
// policyTypes by the same rule if they are missing.
//
//upstream:follows k8s.io/kubernetes/pkg/apis/networking/v1/defaults.go SetDefaults_NetworkPolicy
func direct(spec *networkingv1.NetworkPolicySpec) (isolates [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{ingress: true, egress: len(spec.Egress) > 0}
	}
	return [2]bool{
		ingress: slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress),
		egress:  slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress),
	}
}
