package why

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/node/reach"
)

// Trial says what Try uses.
type Trial struct {
	// Node is the node from which a Service is tried. If it is empty, the first node that is ready is.
	Node string
	// Reach asks a node to try a Service.
	Reach func(ctx context.Context, node, namespace, service string) ([]reach.Attempt, error)
	// Dial connects to addresses of an Ingress, from here.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// answerTime is how long an answer of an app may take.
const answerTime = 10 * time.Second

// Try adds steps to a report. For a Service, a node connects to its ports. For an Ingress, this process sends a request to its
// hosts. Try fails for objects of other kinds.
func Try(ctx context.Context, clients Clients, report *Report, trial Trial) error {
	var steps []Step
	var err error
	switch o := report.Object; o.Kind {
	case "Service":
		steps, err = tryService(ctx, clients, o, trial)
	case "Ingress":
		steps, err = tryIngress(ctx, clients, o, trial)
	default:
		return fmt.Errorf("kedge tries only Services and Ingresses: leave --try out for %s", o)
	}
	report.Steps = append(report.Steps, steps...)
	return err
}

// tryService tries the ports of a Service from a node.
func tryService(ctx context.Context, clients Clients, o Object, trial Trial) ([]Step, error) {
	node := trial.Node
	if node == "" {
		nodes, err := clients.Kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, fmt.Errorf("choose a node: %w. Name one with --node", err)
		}
		for _, n := range nodes.Items {
			if nodeobject.IsReady(&n) {
				node = n.Name
				break
			}
		}
		if node == "" {
			return nil, errors.New("no node is ready, so none can try a connection: `kedge why --all-namespaces` says why")
		}
	}
	attempts, err := trial.Reach(ctx, node, o.Namespace, o.Name)
	if err != nil {
		return nil, err
	}
	if len(attempts) == 0 {
		return []Step{{Name: "trial", State: Warning, Says: "there is nothing to try: the Service has no address of its own, or no TCP port"}}, nil
	}
	var steps []Step
	for _, a := range attempts {
		steps = append(steps, judge(node, a))
	}
	return steps, nil
}

// judge says what an attempt means.
func judge(node string, a reach.Attempt) Step {
	step := Step{Name: "trial", State: Failed, Rule: "trial-" + string(a.End)}
	switch a.End {
	case reach.Connected:
		step.State, step.Rule = Passed, ""
		step.Says = fmt.Sprintf("node %s connects to %s in %s", node, a.Address, a.Took.Round(100*time.Microsecond))
	case reach.Refused:
		step.Says = fmt.Sprintf("node %s is refused at %s: no pod is ready, or no process listens on the target port in the pod", node, a.Address)
		step.Do = "compare targetPort of the Service with the port on which the program listens: kubectl exec in a pod, and ss -lnt there"
	case reach.Silent:
		step.Says = fmt.Sprintf("node %s gets no answer from %s within %s", node, a.Address, a.Took.Round(time.Second))
		step.Do = "a NetworkPolicy or a firewall drops the connection, or the pod's node cannot be reached: `kedge netpol explain` for the pod on a server, and `kedge status`"
	default:
		step.Says = fmt.Sprintf("node %s cannot connect to %s: %s", node, a.Address, a.Error)
		step.Do = fmt.Sprintf("look at the network of node %s: `kedge status` there", node)
	}
	step.Says, step.Do = line(step.Says), line(step.Do)
	return step
}

// AskNode asks a node to try a Service, by way of the API. It is Trial.Reach.
func AskNode(clients Clients) func(ctx context.Context, node, namespace, service string) ([]reach.Attempt, error) {
	return func(ctx context.Context, node, namespace, service string) (attempts []reach.Attempt, err error) {
		text, err := clients.Kubernetes.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(reach.Path).
			Param("namespace", namespace).Param("service", service).DoRaw(ctx)
		switch {
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("%w: a trial from a node needs the rights of an administrator", err)
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("the cluster has no node %s, or its kedge is older and cannot try connections", node)
		case err != nil:
			return nil, fmt.Errorf("ask node %s to try the Service: %w", node, err)
		}
		if err := json.Unmarshal(text, &attempts); err != nil {
			return nil, fmt.Errorf("read the answer of node %s: %w", node, err)
		}
		return attempts, nil
	}
}

// tryIngress sends a request to each host of an Ingress, at its first address.
func tryIngress(ctx context.Context, clients Clients, o Object, trial Trial) ([]Step, error) {
	ingress, err := clients.Kubernetes.NetworkingV1().Ingresses(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the Ingress: %w", err)
	}
	address := ""
	for _, a := range ingress.Status.LoadBalancer.Ingress {
		// Whoever may write the status must not choose what this machine connects to on itself, or of its cloud.
		if ip, err := netip.ParseAddr(a.IP); err == nil && ip.Unmap().IsGlobalUnicast() && !host.IsMetadata(ip) {
			address = a.IP
			break
		}
	}
	if address == "" {
		return []Step{{Name: "trial", State: Warning, Says: "there is nothing to try: the Ingress has no address"}}, nil
	}
	var steps []Step
	for _, target := range targets(ingress) {
		steps = append(steps, target.try(ctx, address, trial.Dial))
	}
	return steps, nil
}

// target is a URL of an Ingress.
type target struct {
	host, path string
	tls        bool
}

// targets returns the URLs of an Ingress: for each host, its first path.
func targets(ingress *networkingv1.Ingress) (all []target) {
	secure := map[string]bool{}
	for _, t := range ingress.Spec.TLS {
		for _, name := range t.Hosts {
			secure[name] = true
		}
	}
	seen := map[string]bool{}
	for _, rule := range ingress.Spec.Rules {
		name := strings.Replace(rule.Host, "*.", "any.", 1)
		if seen[name] {
			continue
		}
		seen[name] = true
		t := target{host: name, path: "/", tls: secure[rule.Host]}
		if rule.HTTP != nil && len(rule.HTTP.Paths) > 0 && strings.HasPrefix(rule.HTTP.Paths[0].Path, "/") {
			t.path = rule.HTTP.Paths[0].Path
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		all = []target{{path: "/"}}
	}
	return all
}

// try sends the request.
func (t target) try(ctx context.Context, address string, dial func(context.Context, string, string) (net.Conn, error)) Step {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	scheme, port := "http", "80"
	if t.tls {
		scheme, port = "https", "443"
	}
	name := t.host
	if name == "" {
		name = address
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, net.JoinHostPort(address, port))
		},
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{ServerName: t.host, MinVersion: tls.VersionTLS12},
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	where := fmt.Sprintf("%s://%s%s at %s", scheme, name, t.path, address)
	step := Step{Name: "trial", State: Failed, Rule: "trial-request"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+name, nil)
	if err != nil {
		step.Says = line(fmt.Sprintf("%s is not a URL: %v", where, err))
		step.Do = "correct the host of the Ingress"
		return step
	}
	request.URL.Path = t.path
	answer, err := client.Do(request)
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		step.State, step.Rule = Warning, "trial-certificate"
		step.Says = line(fmt.Sprintf("%s has a certificate that this machine does not trust: %v", where, certificate.Err))
		return step
	case err != nil:
		step.Says = line(fmt.Sprintf("%s does not answer: %v", where, errors.Unwrap(err)))
		step.Do = "try it on a host of the same network. If it answers there, a firewall is between"
		return step
	}
	answer.Body.Close()
	step.Says = line(fmt.Sprintf("%s answers %s", where, answer.Status))
	switch {
	case answer.StatusCode >= http.StatusInternalServerError:
		step.Do = "read the log of the pods of the Service: the gateway found no app that answers, or the app itself has failed"
	case answer.StatusCode >= http.StatusBadRequest:
		step.State = Warning
	default:
		step.State, step.Rule = Passed, ""
	}
	return step
}
