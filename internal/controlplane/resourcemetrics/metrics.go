// Package resourcemetrics serves the API metrics.k8s.io: how much processor time and memory
// nodes and pods use. `kubectl top` and HorizontalPodAutoscalers read it. The apiserver
// package installs the API group in the API server of this process.
//
// The contract is that of upstream's metrics-server, which elsewhere runs as a pod.
// metrics-server asks all kubelets every 15 seconds, whether somebody wants to know or
// not. This package asks a kubelet for its summary when somebody asks for one of its
// pods, and keeps the answer for some seconds. While nobody asks, the package has no
// goroutine, no connection and no figures. DECISIONS.md of the folder above compares the
// two ways.
//
// A kubelet measures each container every 10 to 30 seconds. The package gives the rates
// that the kubelet has computed, except for containers that have just started. As with
// metrics-server, a pod is left out until all of its running containers have been
// measured, and nodes that do not answer are left out with their pods.
package resourcemetrics

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// User is the name by which kubelets know this package. It may only read their
// statistics: see manifests/metrics-server.
const User = "system:kedge:metrics-server"

// Config is what New has to know.
type Config struct {
	Nodes corelisters.NodeLister
	Pods  corelisters.PodLister
	// Synced tells whether the listers know all objects.
	Synced cache.InformerSynced
	// Kubelet returns HOST:PORT of a node's kubelet.
	Kubelet func(*corev1.Node) (string, error)
	// Transport calls kubelets as User, over HTTPS.
	Transport http.RoundTripper
}

// New returns the API group. It asks no kubelet after the end of ctx.
func New(ctx context.Context, cfg Config) *genericapiserver.APIGroupInfo {
	scheme := Scheme()
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, serializer.NewCodecFactory(scheme))
	reader := newReader(ctx, cfg)
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"nodes": &nodeStorage{storage{cfg.Synced}, cfg.Nodes, reader},
		"pods":  &podStorage{storage{cfg.Synced}, cfg.Nodes, cfg.Pods, reader},
	}
	return &group
}

// Scheme returns the types of the API.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	// The options of requests are of this version.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}
