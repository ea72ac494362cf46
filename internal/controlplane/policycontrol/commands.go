package policycontrol

import (
	"context"
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// Question is what `kedge netpol explain` asks.
type Question struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// From and To are POD, NAMESPACE/POD or an address. They may be empty.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Port is 0 for all ports. Protocol is the number in the IP header.
	Port     uint16 `json:"port,omitempty"`
	Protocol uint8  `json:"protocol,omitempty"`
}

// Explanation says what policies mean for a pod.
type Explanation struct {
	// Pod is NAMESPACE/NAME.
	Pod       string       `json:"pod"`
	Node      string       `json:"node,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Note says why policies do not concern the pod. Then the fields below are empty.
	Note string `json:"note,omitempty"`
	// Ingress and Egress say with whom the pod may talk, if no peer was asked for.
	Ingress *Side `json:"ingress,omitempty"`
	Egress  *Side `json:"egress,omitempty"`
	// Verdicts are about the connections that were asked for.
	Verdicts []Verdict `json:"verdicts,omitempty"`
}

// Side is what policies say about a pod in one direction.
type Side struct {
	// Policies isolate the pod. If there are none, every connection is allowed.
	Policies []string `json:"policies"`
	Rules    []Rule   `json:"rules"`
	// TooLarge says which rules of the policies are left out, because they are too many.
	TooLarge []string `json:"tooLarge,omitempty"`
}

// Rule is a rule of a policy in words.
type Rule struct {
	RuleName
	// Peers and Ports have "all" if there is no limit.
	Peers []string `json:"peers"`
	Ports []string `json:"ports"`
}

// RuleName identifies a rule.
type RuleName struct {
	// Policy is NAMESPACE/NAME. Number counts its rules in one direction from 1.
	Policy string `json:"policy"`
	Number int    `json:"rule"`
}

// Verdict says whether connections are possible.
type Verdict struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Allowed bool   `json:"allowed"`
	// Ports are those that are allowed, if not all are.
	Ports []string `json:"ports,omitempty"`
	// Steps are the decisions: about egress of the one pod, and ingress of the other.
	Steps []Step `json:"steps"`
}

// Step is a decision about one pod.
type Step struct {
	Pod       string `json:"pod"`
	Direction string `json:"direction"`
	Allowed   bool   `json:"allowed"`
	Why       string `json:"why"`
	// Policies isolate the pod. Rules are those of their rules that allow it.
	Policies []string   `json:"policies,omitempty"`
	Rules    []RuleName `json:"rules,omitempty"`

	ports []netpolicy.Ports // nil for all
}

// Routes implements localapi.Part.
func (c *Compiler) Routes() []localapi.Route {
	return []localapi.Route{localapi.Answer(localapi.ExplainPolicies, c.explain)}
}

// AskExplain asks the server of this host what policies mean for a pod.
func AskExplain(ctx context.Context, kedge *localapi.Client, question Question) (Explanation, error) {
	return localapi.Ask[Explanation](ctx, kedge, localapi.ExplainPolicies, question)
}
