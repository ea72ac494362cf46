package kubelet

import (
	"context"
	"net/http"
	"strings"
	"sync"
)

// nodeFirst lets the kubelet's requests for its CSINode wait until its Node is in the API.
// With the first of these requests, upstream's volume plugin waits for the API, and then
// makes the CSINode, whose owner is the Node. If the Node is not there yet, the plugin tries
// again after 0.03, 0.24, 1.9 and 15 seconds, and in the end it ends the process
// (k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go, initializeCSINode). The node is not Ready
// for that long. On a slow machine, registering the Node takes longer than two seconds.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go initializeCSINode waitForAPIServerForever
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/nodeinfomanager/nodeinfomanager.go nodeInfoManager.tryInitializeCSINodeWithAnnotation
type nodeFirst struct {
	node string
	// life ends with the kubelet.
	life context.Context
	// known is closed once the API has shown the Node.
	known chan struct{}
	once  sync.Once
}

func newNodeFirst(life context.Context, node string) *nodeFirst {
	return &nodeFirst{node: node, life: life, known: make(chan struct{})}
}

// wrap returns a transport over next. All transports of the kubelet are wrapped, because any
// of them may be the first to see the Node.
func (n *nodeFirst) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		path := strings.TrimSuffix(request.URL.Path, "/")
		if request.Method == http.MethodGet && strings.HasSuffix(path, "/apis/storage.k8s.io/v1/csinodes/"+n.node) {
			select {
			case <-n.known:
			case <-request.Context().Done():
				return nil, request.Context().Err()
			case <-n.life.Done():
				return nil, n.life.Err()
			}
		}
		answer, err := next.RoundTrip(request)
		created := request.Method == http.MethodPost && strings.HasSuffix(path, "/api/v1/nodes")
		if err == nil && answer.StatusCode/100 == 2 && (created || strings.HasSuffix(path, "/api/v1/nodes/"+n.node)) {
			n.once.Do(func() { close(n.known) })
		}
		return answer, err
	})
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
