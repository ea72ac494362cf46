package kubelet

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// A refused read is repeated after firstWait, then after twice that, and so on while the wait is
// below lastWait. That makes 0.6 s in all.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// patience repeats requests that the API server refuses only because it does not know yet that the
// pod is on this node. The kubelet learns of a new pod, and asks for what the pod mounts, at the same
// moment as the Node authorizer learns of the pod (graph_populator.go in
// k8s.io/kubernetes/plugin/pkg/auth/authorizer/node). A refusal would delay the pod by two seconds:
// client-go waits almost one second before it lists again, and the kubelet gives up after one second
// until its next round.
//
//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/node/graph_populator.go AddGraphEventHandlers
type patience struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (p patience) RoundTrip(request *http.Request) (*http.Response, error) {
	if !belongsToPod(request) {
		return p.next.RoundTrip(request)
	}
	for wait := firstWait; ; wait *= 2 {
		response, err := p.next.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusForbidden || wait > lastWait {
			return response, err
		}
		again := request.Clone(request.Context())
		if request.Body != nil && request.Body != http.NoBody {
			if request.GetBody == nil {
				return response, nil
			}
			if again.Body, err = request.GetBody(); err != nil {
				response.Body.Close()
				return nil, fmt.Errorf("repeat request: %w", err)
			}
		}
		// The body is read to its end, so that the connection can be used again.
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err := loop.Sleep(request.Context(), wait); err != nil {
			return nil, err
		}
		request = again
	}
}

// belongsToPod tells whether the Node authorizer decides about a request by the node's pods. These
// are requests for objects that pods mount and for tokens of their service accounts.
//
//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/node/node_authorizer.go NodeAuthorizer.Authorize
func belongsToPod(request *http.Request) bool {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	i := slices.Index(parts, "namespaces")
	if i < 0 || len(parts) < i+3 {
		return false
	}
	switch parts[i+2] {
	case "configmaps", "secrets", "persistentvolumeclaims", "resourceclaims":
		return request.Method == http.MethodGet
	case "serviceaccounts":
		return request.Method == http.MethodPost && parts[len(parts)-1] == "token"
	}
	return false
}
