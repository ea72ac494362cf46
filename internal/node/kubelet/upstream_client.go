// Follows k8s.io/kubernetes v1.37.2, cmd/kubelet/app/server.go.

package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
	"k8s.io/kubernetes/pkg/kubelet"
)

// connect makes the kubelet's three clients, as run() in cmd/kubelet/app/server.go makes them from
// a kubeconfig: one for general use, one for events with its own rate limit, so that events do not
// delay the rest, and one for heartbeats with a short timeout.
//
//upstream:follows k8s.io/kubernetes/cmd/kubelet/app/server.go run kubeClientConfigOverrides setContentTypeForClient
func (k *Kubelet) connect(ctx context.Context, dependencies *kubelet.Dependencies) error {
	config := rest.CopyConfig(k.cfg.Client)
	config.UserAgent = k.Name() // it becomes the field manager of the kubelet's writes
	config.ContentType = k.server.ContentType
	if config.ContentType == runtime.ContentTypeProtobuf {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	// A negative QPS means that the API server is in this process. It needs no limit, because the
	// API server's priority and fairness protects it.
	if config.QPS >= 0 {
		config.QPS, config.Burst = float32(k.server.KubeAPIQPS), int(k.server.KubeAPIBurst)
	}
	if k.server.Tracing != nil {
		config.Wrap(tracing.WrapperFor(dependencies.TracerProvider))
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return patience{next} })
	config.Wrap(newNodeFirst(ctx, k.cfg.NodeName).wrap)
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("make transport: %w", err)
	}
	dependencies.OnHeartbeatFailure = func() { utilnet.CloseIdleConnectionsFor(transport.Transport) }
	client, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}

	events := rest.CopyConfig(config)
	events.QPS, events.Burst = float32(k.server.EventRecordQPS), int(k.server.EventBurst)
	if events.QPS == 0 {
		events.QPS = -1 // event-qps=0 means no limit, but 0 is the client's default
	}
	eventClient, err := kubernetes.NewForConfigAndClient(events, transport)
	if err != nil {
		return fmt.Errorf("make event client: %w", err)
	}

	heartbeats := rest.CopyConfig(config)
	heartbeats.QPS = -1
	heartbeats.Timeout = min(k.server.NodeStatusUpdateFrequency.Duration,
		time.Duration(k.server.NodeLeaseDurationSeconds)*time.Second)
	heartbeatClient, err := kubernetes.NewForConfig(heartbeats)
	if err != nil {
		return fmt.Errorf("make heartbeat client: %w", err)
	}

	general := &kubeletClient{Interface: client, informers: k.cfg.Informers}
	if k.ownsAddresses {
		general.addresses = k.nodeAddresses()
	}
	dependencies.KubeClient = general
	dependencies.EventClient = eventClient.CoreV1()
	dependencies.HeartbeatClient = heartbeatClient
	return nil
}
