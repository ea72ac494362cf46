package kubelet

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A refused read is tried again after the first wait, twice that, and so on
// while the wait is below the last, which makes 0.6 s in all.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// patience tries again what the API server refuses only because it does not know
// yet that the pod is on this node. The kubelet hears of a new pod, and asks for
// what the pod mounts, in the very moment the Node authorizer hears of it too
// (k8s.io/kubernetes/plugin/pkg/auth/authorizer/node, graph_populator.go). A
// refusal there would hold the pod up for two seconds: client-go waits almost one
// before it lists again, and after one the kubelet gives up until its next round.
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
		// Read to its end, so that the connection can be used again.
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		select {
		case <-time.After(wait):
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
		request = again
	}
}

// belongsToPod tells whether the Node authorizer decides by the node's pods: for
// what they mount, and for the tokens of their service accounts.
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
