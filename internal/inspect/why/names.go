package why

import (
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/node/reach"
)

// name says how a pod's name servers have answered.
func (t *trials) name(from origin, name *reach.Name) Step {
	host := t.To.Host
	step := Step{Name: "name", State: Failed}
	switch {
	case len(name.Asked) == 0:
		step.Rule = "name-no-server"
		step.Says = fmt.Sprintf("%s has no name server", from.words)
		step.Do = "correct dnsPolicy and dnsConfig of the pod: with dnsPolicy ClusterFirst it has that of the cluster"
	case len(name.Addresses) > 0:
		last := name.Asked[len(name.Asked)-1]
		var addresses []string
		for _, a := range name.Addresses {
			addresses = append(addresses, a.String())
		}
		step.State = Passed
		step.Says = fmt.Sprintf("name server %s knows %s: %s", last.Server, strings.TrimSuffix(last.Name, "."), few(addresses))
	case isUnknown(host, name):
		t.unknown(&step, host, name)
	default:
		t.unanswered(&step, from, name)
	}
	step.Says, step.Do = line(step.Says), line(step.Do)
	return step
}

// isUnknown tells whether the name servers know that a name has no address. A name without a dot can only be one of the cluster:
// what is outside may not answer for it.
func isUnknown(host string, name *reach.Name) bool {
	knows := func(a reach.Asked) bool { return a.Error == reach.NoSuchName || a.Error == reach.NoAddress }
	return knows(name.Asked[len(name.Asked)-1]) || !strings.Contains(host, ".") && knows(name.Asked[0])
}

// unknown says why a name has no address.
func (t *trials) unknown(step *Step, host string, name *reach.Name) {
	var asked []string
	for _, a := range name.Asked {
		full := strings.TrimSuffix(a.Name, ".")
		if a.Error == reach.NoAddress {
			step.Rule = "name-without-address"
			step.Says = fmt.Sprintf("the name %s exists, and has no address", full)
			step.Do = "if it is a Service without an address of its own, no pod of it is ready: `kedge why` for the Service says why"
			return
		}
		if !slices.Contains(asked, full) {
			asked = append(asked, full)
		}
	}
	step.Rule = "name-unknown"
	step.Says = fmt.Sprintf("name server %s does not know %s: it was asked for %s", name.Asked[0].Server, host, few(asked))
	step.Do = "correct the name. The name of a Service in another namespace ends with the namespace, such as " + foreigntext.Argument(strings.Split(host, ".")[0]) + ".NAMESPACE: kubectl get services -A"
	all, ok := list(t.world, t.Kubernetes.CoreV1().Services(""), "Services of all namespaces", "")
	if !ok {
		return
	}
	for _, s := range all.Items {
		if s.Name == strings.Split(host, ".")[0] {
			step.Do = fmt.Sprintf("namespace %s has a Service %s: connect to %s.%s", s.Namespace, s.Name, s.Name, s.Namespace)
		}
	}
}

// unanswered says why no name server has answered.
func (t *trials) unanswered(step *Step, from origin, name *reach.Name) {
	last := name.Asked[len(name.Asked)-1]
	if last.Error != reach.Unanswered {
		step.Rule = "name-fault"
		step.Says = fmt.Sprintf("name server %s cannot answer for %s: %s", last.Server, strings.TrimSuffix(last.Name, "."), last.Error)
		step.Do = fmt.Sprintf("if the name is one of the cluster, see the log of kedge on node %s. If not, the name servers of that node do not answer: `kedge status` there", from.node)
		return
	}
	step.Rule = "name-silent"
	step.Says = fmt.Sprintf("%s gets no answer from its name servers: %s", from.words, few(name.Servers))
	step.Do = fmt.Sprintf("see whether kedge runs on node %s: `kedge status`", from.node)
	if from.pod == nil {
		return
	}
	if policies := t.policies(from.pod, networkingv1.PolicyTypeEgress); len(policies) > 0 {
		step.Rule = "name-policy"
		step.Says += ", and NetworkPolicies isolate it: " + few(policies)
		step.Do = fmt.Sprintf("allow the pod to ask for names, at port 53 of UDP and TCP. On a server this says what is allowed: kedge netpol explain %s --to %s --port 53/UDP", foreigntext.Argument(from.pod.Namespace+"/"+from.pod.Name), foreigntext.Argument(last.Server))
	}
}
