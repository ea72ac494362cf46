package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/kedge-dev/kedge/internal/controlplane/resourcemetrics"
)

// kubeletIdle is after which time without a request the metrics API closes a connection
// to a kubelet. HorizontalPodAutoscalers ask every 15 seconds.
const kubeletIdle = 30 * time.Second

// metricsGroup returns the API group metrics.k8s.io, or nil if there is none. It ends
// with ctx.
func (s *Server) metricsGroup(ctx context.Context, built *app.Config) (*genericapiserver.APIGroupInfo, error) {
	if s.config.MetricsTLS == nil {
		return nil, nil
	}
	transport, err := s.kubeletTransport(ctx, built)
	if err != nil {
		return nil, fmt.Errorf("make client of kubelets: %w", err)
	}
	core := built.KubeAPIs.ControlPlane.VersionedInformers.Core().V1()
	nodes, pods := core.Nodes().Informer(), core.Pods().Informer()
	return resourcemetrics.New(ctx, resourcemetrics.Config{
		Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(),
		Synced:    func() bool { return nodes.HasSynced() && pods.HasSynced() },
		Kubelet:   kubeletAddress(built.KubeAPIs.Extra.KubeletClientConfig),
		Transport: transport,
	}), nil
}

// kubeletTransport returns a transport that dials kubelets as the API server does, but
// shows a certificate that may read only statistics. Kubelets that the user has made known
// to the API server by arguments may not trust that certificate: they see the one in the
// arguments.
func (s *Server) kubeletTransport(ctx context.Context, built *app.Config) (http.RoundTripper, error) {
	kubelets, files := built.KubeAPIs.Extra.KubeletClientConfig, s.config.Files
	if kubelets.TLSClientConfig != (kubeletclient.KubeletTLSConfig{
		CertFile: files.KubeletClientCertFile, KeyFile: files.KubeletClientKeyFile, CAFile: files.ClientCAFile,
	}) {
		return kubeletclient.MakeTransport(&kubelets)
	}
	dial := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if selector := built.KubeAPIs.ControlPlane.Generic.EgressSelector; selector != nil {
		chosen, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
		if err != nil {
			return nil, err
		}
		if chosen != nil {
			dial = chosen
		}
	}
	transport := &http.Transport{DialContext: dial, TLSClientConfig: s.config.MetricsTLS, IdleConnTimeout: kubeletIdle}
	context.AfterFunc(ctx, transport.CloseIdleConnections)
	return transport, nil
}
