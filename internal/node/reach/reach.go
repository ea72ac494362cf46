// Package reach tries a connection from a node or from a pod on it, for `kedge why`. The connection takes the way of all others: the
// DNS of the pod, the rules of the service proxy, NetworkPolicies and the network between nodes. The agent package puts its handler
// at the kubelet's port, and inspect/why asks it.
package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Path is where the kubelet's port answers, for callers with the right to get nodes/proxy.
const Path = "/try"

const (
	// patience is how long a connection may take.
	patience = 3 * time.Second
	// mostEndpoints is how many endpoints of a Service are tried.
	mostEndpoints = 8
)

// Question is what a node is asked. A node itself connects only to a Service, so that nobody looks around in its network. A pod
// connects to any host, as programs in it can.
type Question struct {
	Namespace string
	// Service is the name of a Service in the namespace.
	Service string
	// Pod is the name of a pod in the namespace, which has a network on the node. Host is a name or an address, and Port
	// is 0 if only the name is asked for.
	Pod, Host string
	Port      uint16
}

// Values returns the question as parameters of a URL.
func (q Question) Values() url.Values {
	values := url.Values{"namespace": {q.Namespace}}
	if q.Service != "" {
		values.Set("service", q.Service)
		return values
	}
	values.Set("pod", q.Pod)
	values.Set("host", q.Host)
	values.Set("port", strconv.Itoa(int(q.Port)))
	return values
}

// parse reads the parameters of a URL.
func parse(values url.Values) (Question, error) {
	q := Question{Namespace: values.Get("namespace"), Service: values.Get("service"), Pod: values.Get("pod"), Host: values.Get("host")}
	if q.Namespace == "" || (q.Service == "") == (q.Pod == "" || q.Host == "") {
		return q, errors.New("give the parameters namespace and service, or namespace, pod, host and port")
	}
	if q.Pod != "" {
		port, err := strconv.ParseUint(values.Get("port"), 10, 16)
		if err != nil {
			return q, fmt.Errorf("port %q is not a number from 0 to 65535", values.Get("port"))
		}
		q.Port = uint16(port)
	}
	return q, nil
}

// Answer is what a node has found out.
type Answer struct {
	// Name is how the pod's DNS has answered. It is nil if no name was asked.
	Name *Name `json:"name,omitempty"`
	// Targets are the addresses that were tried.
	Targets []Target `json:"targets,omitempty"`
}

// Target is an address and a port.
type Target struct {
	Attempt
	// Rules are what the service proxy of the node does with connections to the address.
	Rules Rules `json:"rules"`
	// Endpoints are connections to the endpoints to which these rules lead.
	Endpoints []Attempt `json:"endpoints,omitempty"`
}

// End tells how an attempt ended.
type End string

// The ends.
const (
	Connected End = "connected"
	// Refused is an answer that nobody listens, or that there is no endpoint.
	Refused End = "refused"
	// Silent is no answer at all.
	Silent End = "silent"
	// Other is any other error.
	Other End = "other"
)

// Attempt is a connection that was tried.
type Attempt struct {
	Address netip.AddrPort `json:"address"`
	End     End            `json:"end"`
	Took    time.Duration  `json:"took"`
	// Error is set if there was no connection.
	Error string `json:"error,omitempty"`
}

// Handler answers questions.
type Handler struct {
	services func(ctx context.Context, namespace, name string) (*corev1.Service, error)
	pods     func(ctx context.Context, namespace, name string) (place, error)
	dial     func(ctx context.Context, from place, network, address string) (net.Conn, error)
	rules    func(ctx context.Context, target netip.AddrPort) Rules
}

// New makes the handler. client calls the API as the node, and runtime is the socket of the node's container runtime.
func New(client *rest.Config, runtime string) *Handler {
	return &Handler{
		services: func(ctx context.Context, namespace, name string) (*corev1.Service, error) {
			api, err := kubernetes.NewForConfig(client)
			if err != nil {
				return nil, fmt.Errorf("make client: %w", err)
			}
			return api.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		pods: func(ctx context.Context, namespace, name string) (place, error) {
			return placeOf(ctx, runtime, namespace, name)
		},
		dial:  dial,
		rules: rulesFor,
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	question, err := parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ask := h.fromNode
	if question.Pod != "" {
		ask = h.fromPod
	}
	answer, err := ask(r.Context(), question)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, "there is no such Service", http.StatusUnprocessableEntity)
	case errors.Is(err, errNoNetwork):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the client has gone
	}
}

// fromNode tries all TCP ports of a Service.
func (h *Handler) fromNode(ctx context.Context, q Question) (answer Answer, err error) {
	service, err := h.services(ctx, q.Namespace, q.Service)
	if err != nil {
		return answer, fmt.Errorf("read the Service: %w", err)
	}
	ip, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil {
		return answer, nil // a headless Service, or one without an address
	}
	for _, port := range service.Spec.Ports {
		if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
			answer.Targets = append(answer.Targets, h.try(ctx, place{}, netip.AddrPortFrom(ip, uint16(port.Port)))) //nolint:gosec // the API admits only ports
		}
	}
	return answer, nil
}

// fromPod asks for the name as the pod does, and connects to the first address.
func (h *Handler) fromPod(ctx context.Context, q Question) (answer Answer, err error) {
	from, err := h.pods(ctx, q.Namespace, q.Pod)
	if err != nil {
		return answer, err
	}
	ip, err := netip.ParseAddr(q.Host)
	if err != nil {
		answer.Name = h.resolve(ctx, from, q.Host)
		if len(answer.Name.Addresses) == 0 {
			return answer, nil
		}
		ip = answer.Name.Addresses[0]
	}
	if q.Port != 0 {
		answer.Targets = []Target{h.try(ctx, from, netip.AddrPortFrom(ip.Unmap(), q.Port))}
	}
	return answer, nil
}

// try connects to an address, and to the endpoints to which the service proxy leads.
func (h *Handler) try(ctx context.Context, from place, address netip.AddrPort) Target {
	t := Target{Rules: h.rules(ctx, address)}
	t.Endpoints = make([]Attempt, min(len(t.Rules.Endpoints), mostEndpoints))
	var attempts sync.WaitGroup
	attempts.Go(func() { t.Attempt = h.connect(ctx, from, address) })
	for i := range t.Endpoints {
		attempts.Go(func() { t.Endpoints[i] = h.connect(ctx, from, t.Rules.Endpoints[i]) })
	}
	attempts.Wait()
	return t
}

// connect connects, and closes the connection at once.
func (h *Handler) connect(ctx context.Context, from place, address netip.AddrPort) Attempt {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a := Attempt{Address: address, End: Connected}
	began := time.Now()
	conn, err := h.dial(ctx, from, "tcp", address.String())
	a.Took = time.Since(began)
	var timeout net.Error
	switch {
	case err == nil:
		conn.Close()
		return a
	case errors.Is(err, syscall.ECONNREFUSED):
		a.End = Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		a.End = Silent
	default:
		a.End = Other
	}
	a.Error = err.Error()
	return a
}
