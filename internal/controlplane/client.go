package controlplane

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// Users of the control plane's own components; upstream's RBAC names them.
const (
	controllersUser = "system:kube-controller-manager"
	schedulerUser   = user.KubeScheduler
)

// ClientConfig returns the configuration of clients that reach the API server
// in process as the named user. Authorization and admission apply to it as to
// any other; system:authenticated is added to its groups. It may be called at
// any time; requests made before the server answers get 503 and are retried by
// client-go.
func (a *APIServer) ClientConfig(name string, groups ...string) *rest.Config {
	return &rest.Config{
		// The name is for messages only.
		Host:      "http://kubernetes.default.svc",
		Transport: inprocess.NewTransport(http.HandlerFunc(a.serve), name, groups...),
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		// API priority and fairness protects the server, and fairly.
		QPS:                -1,
		DisableCompression: true,
	}
}

// ClientUntil is ClientConfig for what runs in turns with other servers: its
// requests end with ctx, so that nobody writes whose turn is over, nor waits
// for a datastore that does not answer.
func (a *APIServer) ClientUntil(ctx context.Context, name string, groups ...string) *rest.Config {
	config := a.ClientConfig(name, groups...)
	config.Transport = inprocess.Until(ctx, config.Transport)
	return config
}

// loopback is how the API server calls itself.
func (a *APIServer) loopback() http.RoundTripper {
	return inprocess.NewTransport(http.HandlerFunc(a.serve), user.APIServerUser, user.SystemPrivilegedGroup)
}

// Informers returns a factory of the informers that all of this process shares,
// for a component that ends with ctx and calls Shutdown then. Objects are read
// as the API server itself: who asks must be one who may know them. It fails
// before the API server is ready, and after it has stopped.
func (a *APIServer) Informers(ctx context.Context) (informers.SharedInformerFactory, error) {
	return a.view(ctx, objectcache.Options{})
}

func (a *APIServer) view(ctx context.Context, options objectcache.Options) (informers.SharedInformerFactory, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.serving == nil {
		return nil, errNotServing
	}
	return a.serving.objects.View(ctx, options), nil
}

// serviceAccountClients builds the clients of controllers, each of which calls
// as its own service account in kube-system, the one upstream's RBAC grants
// what it needs. It implements clientbuilder.ControllerClientBuilder. Unlike
// upstream's it needs neither tokens nor the service accounts to exist.
type serviceAccountClients struct {
	api *APIServer
	// ctx is what the requests of all of them end with.
	ctx context.Context
}

func (b serviceAccountClients) ConfigOrDie(name string) *rest.Config {
	const namespace = "kube-system"
	config := b.api.ClientUntil(b.ctx, "system:serviceaccount:"+namespace+":"+name,
		"system:serviceaccounts", "system:serviceaccounts:"+namespace)
	return rest.AddUserAgent(config, name)
}

func (b serviceAccountClients) Config(name string) (*rest.Config, error) {
	return b.ConfigOrDie(name), nil
}

func (b serviceAccountClients) Client(name string) (kubernetes.Interface, error) {
	return kubernetes.NewForConfig(b.ConfigOrDie(name))
}

func (b serviceAccountClients) ClientOrDie(name string) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(b.ConfigOrDie(name))
}

func (b serviceAccountClients) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	return discovery.NewDiscoveryClientForConfig(b.ConfigOrDie(name))
}

func (b serviceAccountClients) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	return discovery.NewDiscoveryClientForConfigOrDie(b.ConfigOrDie(name))
}
