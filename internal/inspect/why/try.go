package why

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/reach"
)

// Trial says what Try uses.
type Trial struct {
	// Node is the node from which a Service is tried. If it is empty, the first node that is ready is.
	Node string
	// To is what a pod connects to.
	To Target
	// Ask asks a node to try connections.
	Ask func(ctx context.Context, node string, question reach.Question) (reach.Answer, error)
	// Dial connects to addresses of an Ingress, from here.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// answerTime is how long an answer of an app may take.
const answerTime = 10 * time.Second

// Try adds steps to a report. For a Service, a node connects to its ports. For a pod, the pod's node connects from the network of
// the pod. For an Ingress, this process sends a request to its hosts. Try fails for objects of other kinds.
func Try(ctx context.Context, clients Clients, report *Report, trial Trial) error {
	t := &trials{world: newWorld(ctx, clients), Trial: trial}
	var steps []Step
	var err error
	switch o := report.Object; o.Kind {
	case "Service":
		steps, err = t.service(o)
	case "Pod":
		if trial.To.Host == "" {
			return fmt.Errorf("say what %s cannot reach: give --to, such as --to=db:5432", o)
		}
		steps, err = t.pod(o)
	case "Ingress":
		steps, err = tryIngress(ctx, clients, o, trial)
	default:
		return fmt.Errorf("kedge tries only pods, Services and Ingresses: leave --try and --to out for %s", o)
	}
	if err == nil {
		err = t.fault
	}
	report.Steps = append(report.Steps, steps...)
	report.Unread = append(report.Unread, t.unread()...)
	return err
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
