package bench

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	policiesFile = "build/bench/policies.json"
	// policyRounds is how often each way, and each change of a policy, is measured.
	policyRounds = 7
	// A cluster has settled if the kedges of both its hosts together have used less than policyQuiet of
	// a core for policyWatch, policyQuietTimes in succession. It may take policySettleLimit.
	policyQuiet       = 0.1
	policyWatch       = 5 * time.Second
	policyQuietTimes  = 3
	policySettleLimit = 15 * time.Minute
	// policyPause is the time between the start of the client and the two changes of a policy. policyLead
	// is how long before the API's answer a change may be in force.
	policyPause = 2 * time.Second
	policyLead  = 50 * time.Millisecond
	// crowdNode has the pods that only have addresses.
	crowdNode      = "crowd"
	crowdNamespace = "crowd"
	crowdWorkers   = 8
	// switchPolicy is the policy whose changes are timed.
	switchPolicy = "switch"
)

// policySteps are the sizes of the clusters that are measured.
var policySteps = []policyStep{
	{},
	{Policies: 10, Pods: 20, Services: 50},
	{Policies: 100, Pods: 200, Services: 500},
	{Policies: 1000, Pods: 2000, Services: 5000},
}

// policyStep has the results of a cluster of one size.
type policyStep struct {
	Policies int `json:"policies"`
	Pods     int `json:"pods"`
	Services int `json:"services"`
	// Ways are the results of testserver's measure, by way.
	Ways map[string][]wayResult `json:"ways"`
	// Forbid and Allow are the seconds from the API's answer about a changed policy until the
	// first connection that it forbids fails, and until the first that is allowed again succeeds.
	Forbid []float64 `json:"forbidSeconds"`
	Allow  []float64 `json:"allowSeconds"`
	// Server and Agent are the anonymous memory of each host's kedge in bytes.
	Server float64 `json:"serverAnonymous"`
	Agent  float64 `json:"agentAnonymous"`
}

func (s policyStep) String() string {
	return fmt.Sprintf("%d policies, %d addresses, %d Services", s.Policies, s.Pods, s.Services)
}

// policiesReport has the results of all steps.
type policiesReport struct {
	origin
	Steps []policyStep `json:"steps"`
}

// Table returns the medians, and their ratios to those without policies, as text.
func (r *policiesReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%smedian of %d rounds; behind each value its ratio to the one without policies\n\n", r.heading(), policyRounds)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, way := range []string{wayPod, wayNear} {
		var rows []string
		results := map[string][]wayResult{}
		for _, step := range r.Steps {
			rows = append(rows, step.String())
			results[step.String()] = step.Ways[way]
		}
		compare(table, way, rows, networkColumns(), results)
	}
	table.Flush()
	fmt.Fprintln(&text)
	fmt.Fprintf(table, "\tforbidden after, ms\tallowed after, ms\tserver anonymous, MiB\tagent anonymous, MiB\t\n")
	for _, step := range r.Steps {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.1f\t%.1f\t\n", step, 1000*median(step.Forbid), 1000*median(step.Allow), step.Server/mebibyte, step.Agent/mebibyte)
	}
	table.Flush()
	return text.String()
}

// crowd fills a cluster with policies, with pods that only have an address, and with Services.
type crowd struct{ client kubernetes.Interface }

// fill makes as many objects as a step wants. Half of the policies select the pods that are measured.
func (c *crowd) fill(ctx context.Context, to policyStep) error {
	for _, kind := range []struct {
		want int
		make func(ctx context.Context, n int) error
	}{{to.Pods, c.makePod}, {to.Services, c.makeService}, {to.Policies, c.makePolicy}} {
		if _, err := load(crowdWorkers, func(n int) bool { return n < kind.want }, func(n int) error { return kind.make(ctx, n) }); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the namespace and the node of the crowd.
func (c *crowd) prepare(ctx context.Context) error {
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crowdNamespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: crowdNode}}, metav1.CreateOptions{})
	return err
}

// crowdLabels are the labels of a pod, which the policy of the same number selects.
func crowdLabels(n int) map[string]string { return map[string]string{"member": fmt.Sprint(n)} }

func (c *crowd) makePod(ctx context.Context, n int) error {
	name := fmt.Sprint("member-", n)
	pod, err := c.client.CoreV1().Pods(crowdNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: crowdLabels(n)},
		Spec: corev1.PodSpec{
			NodeName: crowdNode,
			// Nobody runs the pod, and its node is never ready.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP = fmt.Sprintf("10.42.%d.%d", 100+n/200, 2+n%200)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	_, err = c.client.CoreV1().Pods(crowdNamespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func (c *crowd) makeService(ctx context.Context, n int) error {
	name := fmt.Sprint("service-", n)
	port := int32(80)
	if _, err := c.client.CoreV1().Services(crowdNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.client.DiscoveryV1().EndpointSlices(crowdNamespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.42.%d.%d", 100+n%2000/200, 2+n%200)}}},
	}, metav1.CreateOptions{})
	return err
}

// makePolicy makes a policy for a member of the crowd or, every other time, for the pods that are
// measured.
func (c *crowd) makePolicy(ctx context.Context, n int) error {
	namespace, selected := crowdNamespace, crowdLabels(n)
	if n%2 == 0 {
		namespace, selected = "default", map[string]string{"measured": "yes"}
	}
	port := intstr.FromInt(8000 + n%100)
	_, err := c.client.NetworkingV1().NetworkPolicies(namespace).Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("policy-", n)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: selected},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{
					{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: crowdLabels(n)}},
					{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("172.%d.%d.0/24", 16+n/256, n%256)}},
				},
				Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

// allow makes the policy with which the measured pods may be reached by the client, if there is any
// other policy.
func (c *crowd) allow(ctx context.Context) error {
	_, err := c.client.NetworkingV1().NetworkPolicies("default").Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"measured": "yes"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}},
			}}},
		},
	}, metav1.CreateOptions{})
	return err
}
