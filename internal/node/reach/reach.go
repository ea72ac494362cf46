// Package reach tries a connection to a Service from a node, for `kedge why --try`. The connection takes the way of all
// others on the node: the rules of the service proxy, NetworkPolicies and the network between nodes. The agent package puts
// its handler at the kubelet's port, and inspect/why asks it.
package reach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Path is where the kubelet's port answers, for callers with the right to get nodes/proxy. The parameters namespace and
// service name a Service: no other address is tried.
const Path = "/try"

// patience is how long a connection may take.
const patience = 3 * time.Second

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
	Port    int32         `json:"port"`
	Address string        `json:"address"`
	End     End           `json:"end"`
	Took    time.Duration `json:"took"`
	// Error is set if there was no connection.
	Error string `json:"error,omitempty"`
}

// Handler answers with the attempts of all TCP ports of a Service.
type Handler struct {
	services func(ctx context.Context, namespace, name string) (*corev1.Service, error)
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// New makes the handler. client calls the API as the node.
func New(client *rest.Config) *Handler {
	return &Handler{
		services: func(ctx context.Context, namespace, name string) (*corev1.Service, error) {
			api, err := kubernetes.NewForConfig(client)
			if err != nil {
				return nil, fmt.Errorf("make client: %w", err)
			}
			return api.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		dial: (&net.Dialer{Timeout: patience}).DialContext,
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.URL.Query().Get("namespace"), r.URL.Query().Get("service")
	if namespace == "" || name == "" {
		http.Error(w, "give the parameters namespace and service", http.StatusBadRequest)
		return
	}
	service, err := h.services(r.Context(), namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		http.Error(w, "there is no such Service", http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, "read the Service: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	attempts := []Attempt{}
	if ip := service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		for _, port := range service.Spec.Ports {
			if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
				attempts = append(attempts, h.try(r.Context(), ip, port.Port))
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(attempts) // the client has gone
}

// try connects, and closes the connection at once.
func (h *Handler) try(ctx context.Context, ip string, port int32) Attempt {
	a := Attempt{Port: port, Address: net.JoinHostPort(ip, strconv.Itoa(int(port))), End: Connected}
	began := time.Now()
	conn, err := h.dial(ctx, "tcp", a.Address)
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
