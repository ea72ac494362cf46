package why

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/node/reach"
)

// Target is what a pod connects to.
type Target struct {
	// Host is a name, as a program in the pod would ask for it, or an address.
	Host string
	// Port is 0 if only the name is asked for.
	Port uint16
}

// ParseTarget reads HOST or HOST:PORT. It returns false if the text is neither.
func ParseTarget(text string) (t Target, ok bool) {
	t.Host = text
	if host, port, err := net.SplitHostPort(text); err == nil {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return t, false
		}
		t = Target{Host: host, Port: uint16(number)}
	}
	_, err := netip.ParseAddr(t.Host)
	return t, err == nil || hostName(t.Host)
}

// hostName tells whether a name can be asked for.
func hostName(text string) bool {
	return text != "" && len(text) < 254 && strings.Trim(strings.ToLower(text), "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
}

// trials tries connections from nodes and pods.
type trials struct {
	*world
	Trial
}

// service tries the ports of a Service from a node.
func (t *trials) service(o Object) ([]Step, error) {
	node := t.Node
	if node == "" {
		var err error
		if node, err = t.readyNode(); err != nil {
			return nil, err
		}
	}
	answer, err := t.Ask(t.ctx, node, reach.Question{Namespace: o.Namespace, Service: o.Name})
	if err != nil {
		return nil, err
	}
	if len(answer.Targets) == 0 {
		return []Step{{Name: "trial", State: Warning, Says: "there is nothing to try: the Service has no address of its own, or no TCP port"}}, nil
	}
	service, _ := get(t.world, t.Kubernetes.CoreV1().Services(o.Namespace), "Services", o.Namespace, o.Name)
	var steps []Step
	for _, target := range answer.Targets {
		steps = append(steps, t.target(origin{words: "node " + node, node: node}, service, target)...)
	}
	return steps, nil
}

// readyNode chooses a node for a trial.
func (t *trials) readyNode() (string, error) {
	nodes, err := t.Kubernetes.CoreV1().Nodes().List(t.ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", fmt.Errorf("choose a node: %w. Name one with --node", err)
	}
	for _, n := range nodes.Items {
		if nodeobject.IsReady(&n) {
			return n.Name, nil
		}
	}
	return "", errors.New("no node is ready, so none can try a connection: `kedge why --all-namespaces` says why")
}

// origin is where a connection begins.
type origin struct {
	// words are what sentences call it, such as "pod web".
	words, node string
	// pod is nil if the node itself connects.
	pod *corev1.Pod
}

// pod asks for a name as a pod does, and connects from there.
func (t *trials) pod(o Object) ([]Step, error) {
	pod, ok := get(t.world, t.Kubernetes.CoreV1().Pods(o.Namespace), "pods", o.Namespace, o.Name)
	switch {
	case !ok:
		return nil, fmt.Errorf("the pod %s has gone", o.Name)
	case pod.Spec.NodeName == "" || finished(pod):
		return []Step{{Name: "trial", State: Warning, Says: "there is nothing to try: the pod does not run on a node"}}, nil
	}
	from := origin{words: "pod " + pod.Name, node: pod.Spec.NodeName, pod: pod}
	answer, err := t.Ask(t.ctx, from.node, reach.Question{Namespace: o.Namespace, Pod: o.Name, Host: t.To.Host, Port: t.To.Port})
	if err != nil {
		return nil, err
	}
	var steps []Step
	if answer.Name != nil {
		steps = append(steps, t.name(from, answer.Name))
	}
	for _, target := range answer.Targets {
		service := t.serviceAt(target.Address.Addr())
		if service != nil {
			step := t.way(service, target.Address.Port())
			if steps = append(steps, step); step.State == Failed {
				return steps, nil // the attempt says nothing more
			}
		}
		steps = append(steps, t.target(from, service, target)...)
	}
	return steps, nil
}

// serviceAt returns the Service with an address, or nil.
func (t *trials) serviceAt(ip netip.Addr) *corev1.Service {
	all, ok := list(t.world, t.Kubernetes.CoreV1().Services(""), "Services of all namespaces", "")
	if !ok {
		return nil
	}
	for i := range all.Items {
		if slices.Contains(all.Items[i].Spec.ClusterIPs, ip.String()) {
			return &all.Items[i]
		}
	}
	return nil
}

// way says whether a Service has a port, and is well.
func (t *trials) way(s *corev1.Service, port uint16) Step {
	step := Step{Name: "service", State: Failed}
	var has []string
	found := false
	for _, p := range s.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			has = append(has, portText(p.Name, p.Port))
			found = found || p.Port == int32(port)
		}
	}
	if !found {
		step.Rule = "trial-port"
		step.Says = fmt.Sprintf("Service %s/%s has no TCP port %d. It has %s", s.Namespace, s.Name, port, few(has))
		step.Do = "connect to a port of the Service, and not to that of its pods"
		if len(has) == 0 {
			step.Says = fmt.Sprintf("Service %s/%s has no TCP port", s.Namespace, s.Name)
		}
		return step
	}
	if f := failed(walk(t.world, s, serviceWay)); f != nil {
		step.Rule, step.Says, step.Do = f.rule, fmt.Sprintf("it is Service %s/%s, which does not work: %s", s.Namespace, s.Name, f.says), f.do
		return step
	}
	step.State, step.Says = Passed, fmt.Sprintf("it is Service %s/%s with %d endpoints", s.Namespace, s.Name, endpointsOf(t.world, s))
	return step
}

// target says what was found out about an address.
func (t *trials) target(from origin, service *corev1.Service, target reach.Target) (steps []Step) {
	if step := t.rules(from, service, target); step.Says != "" {
		steps = append(steps, step)
	}
	steps = append(steps, t.judge(from, service, target))
	return steps
}

// rules says what the service proxy of the node does with connections to an address.
func (t *trials) rules(from origin, service *corev1.Service, target reach.Target) Step {
	step := Step{Name: "rules", State: Passed}
	var endpoints []string
	for _, e := range target.Rules.Endpoints {
		endpoints = append(endpoints, e.String())
	}
	ready := service != nil && endpointsOf(t.world, service) > 0
	switch {
	case target.Rules.State == reach.Sends:
		step.Says = fmt.Sprintf("node %s sends connections to %s to %s", from.node, target.Address, few(endpoints))
	case target.Rules.State == reach.Refuses && !ready:
		step.Says = fmt.Sprintf("node %s refuses connections to %s, because the Service has no endpoints", from.node, target.Address)
	case target.Rules.State == reach.Unknown || !ready:
	default:
		step.State, step.Rule = Failed, "trial-rules"
		step.Says = fmt.Sprintf("node %s has no rules that lead from %s to an endpoint, although the Service has endpoints", from.node, target.Address)
		step.Do = fmt.Sprintf("see the log of kedge on node %s for lines about the proxy, and restart kedge there. If the Service is a few seconds old, ask again", from.node)
	}
	return step
}

// judge says what an attempt means.
func (t *trials) judge(from origin, service *corev1.Service, target reach.Target) Step {
	step := Step{Name: "trial", State: Failed, Rule: "trial-" + string(target.End)}
	well, broken := endsOf(target.Endpoints)
	switch target.End {
	case reach.Connected:
		step.State, step.Rule = Passed, ""
		step.Says = fmt.Sprintf("%s connects to %s in %s", from.words, target.Address, target.Took.Round(100*time.Microsecond))
		if len(broken) > 0 {
			step.State, step.Rule = Warning, "trial-endpoint"
			step.Says += fmt.Sprintf(". Not all endpoints answer: %s", few(broken))
			step.Do = "see why the pods of these endpoints do not answer: kubectl get pods -A -o wide has their addresses. Until then some connections fail"
		}
	case reach.Refused:
		t.refused(&step, from, service, target)
	case reach.Silent:
		step.Says = fmt.Sprintf("%s gets no answer from %s within %s", from.words, target.Address, target.Took.Round(time.Second))
		step.Do = "a NetworkPolicy or a firewall drops the connection, or the other host cannot be reached: `kedge status`"
		if policies := t.isolating(from.pod, target); len(policies) > 0 {
			step.Rule = "trial-policy"
			step.Says += ", and NetworkPolicies isolate it: " + few(policies)
			step.Do = "see on a server whether they allow the connection: " + t.explain(from.pod, target)
		}
	default:
		step.Says = fmt.Sprintf("%s cannot connect to %s: %s", from.words, target.Address, target.Error)
		step.Do = fmt.Sprintf("look at the network of node %s: `kedge status` there", from.node)
	}
	if target.End != reach.Connected && len(well) > 0 {
		step.Says += ". The endpoints themselves answer: " + few(well)
	}
	step.Says, step.Do = line(step.Says), line(step.Do)
	return step
}

// refused says why a connection is refused.
func (t *trials) refused(step *Step, from origin, service *corev1.Service, target reach.Target) {
	step.Do = "compare targetPort of the Service with the port on which the program listens: kubectl exec in a pod, and ss -lnt there"
	switch {
	case service == nil:
		step.Says = fmt.Sprintf("%s is refused at %s: no process listens there", from.words, target.Address)
		step.Do = "see on which port the program listens, and whether it listens on all addresses of its host"
	case len(target.Rules.Endpoints) > 0:
		step.Says = fmt.Sprintf("%s is refused at %s: no process listens at its endpoints", from.words, target.Address)
	default:
		step.Says = fmt.Sprintf("%s is refused at %s: no pod is ready, or no process listens on the target port in the pod", from.words, target.Address)
	}
}

// endsOf returns the endpoints that have answered, and those that have not with how they ended.
func endsOf(endpoints []reach.Attempt) (well, broken []string) {
	for _, e := range endpoints {
		if e.End == reach.Connected {
			well = append(well, e.Address.String())
		} else {
			broken = append(broken, fmt.Sprintf("%s (%s)", e.Address, e.End))
		}
	}
	return well, broken
}

// isolating returns the NetworkPolicies that isolate the pod from which a connection goes, and the pods to which it goes, with the pods.
func (t *trials) isolating(from *corev1.Pod, target reach.Target) (words []string) {
	if from != nil {
		words = t.policies(from, networkingv1.PolicyTypeEgress)
	}
	for _, pod := range t.podsAt(target) {
		words = append(words, t.policies(pod, networkingv1.PolicyTypeIngress)...)
	}
	return words
}

// podsAt returns the pods to which a connection goes.
func (t *trials) podsAt(target reach.Target) (pods []*corev1.Pod) {
	addresses := []string{target.Address.Addr().String()}
	for _, e := range target.Rules.Endpoints {
		addresses = append(addresses, e.Addr().String())
	}
	all, ok := list(t.world, t.Kubernetes.CoreV1().Pods(""), "pods of all namespaces", "")
	if !ok {
		return nil
	}
	for i := range all.Items {
		if pod := &all.Items[i]; !finished(pod) && !pod.Spec.HostNetwork && slices.Contains(addresses, pod.Status.PodIP) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// policies returns the NetworkPolicies that isolate a pod in a direction.
func (t *trials) policies(pod *corev1.Pod, direction networkingv1.PolicyType) (words []string) {
	all, ok := list(t.world, t.Kubernetes.NetworkingV1().NetworkPolicies(pod.Namespace), "NetworkPolicies", pod.Namespace)
	if !ok || pod.Spec.HostNetwork {
		return nil
	}
	for _, policy := range all.Items {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err == nil && slices.Contains(policy.Spec.PolicyTypes, direction) && selector.Matches(labels.Set(pod.Labels)) {
			words = append(words, fmt.Sprintf("%s/%s (%s of pod %s)", policy.Namespace, policy.Name, direction, pod.Name))
		}
	}
	return words
}

// explain returns the command that says whether policies allow a connection.
func (t *trials) explain(from *corev1.Pod, target reach.Target) string {
	peer, port := target.Address.Addr().String(), target.Address.Port()
	if pods := t.podsAt(target); len(pods) > 0 {
		peer = pods[0].Namespace + "/" + pods[0].Name
		for _, e := range target.Rules.Endpoints {
			if e.Addr().String() == pods[0].Status.PodIP {
				port = e.Port() // policies are about the port of the pod
			}
		}
	}
	if from == nil {
		return fmt.Sprintf("kedge netpol explain %s", foreigntext.Argument(peer))
	}
	return fmt.Sprintf("kedge netpol explain %s --to %s --port %d", foreigntext.Argument(from.Namespace+"/"+from.Name), foreigntext.Argument(peer), port)
}

// AskNode asks a node to try connections, by way of the API. It is Trial.Ask.
func AskNode(clients Clients) func(ctx context.Context, node string, question reach.Question) (reach.Answer, error) {
	return func(ctx context.Context, node string, question reach.Question) (answer reach.Answer, err error) {
		request := clients.Kubernetes.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(reach.Path)
		for name, values := range question.Values() {
			request.Param(name, values[0])
		}
		text, err := request.DoRaw(ctx)
		switch {
		case apierrors.IsForbidden(err):
			return answer, fmt.Errorf("%w: a trial from a node needs the rights of an administrator", err)
		case apierrors.IsNotFound(err):
			return answer, fmt.Errorf("the cluster has no node %s, or its kedge is older and cannot try connections", node)
		case err != nil:
			return answer, fmt.Errorf("ask node %s to try a connection: %w", node, err)
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return answer, fmt.Errorf("read the answer of node %s: %w", node, err)
		}
		return answer, nil
	}
}
