package controllers

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// managerUser is the user of kube-controller-manager itself, to whom upstream's
// RBAC grants what it needs.
const managerUser = "system:kube-controller-manager"

// serviceAccountClients builds the clients of the controllers. Each controller calls
// as its own service account in kube-system, to which upstream's RBAC grants what
// the controller needs. It implements clientbuilder.ControllerClientBuilder. Unlike
// upstream's builder it needs no tokens, and the service accounts need not exist.
type serviceAccountClients struct {
	api API
	// ctx ends the requests of all clients.
	ctx context.Context
	// migrating tells whether objects of a resource are being migrated. It is nil if
	// nobody migrates any.
	migrating func(schema.GroupResource) bool
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
	client, err := discovery.NewDiscoveryClientForConfig(b.ConfigOrDie(name))
	if err != nil {
		return nil, err
	}
	if slices.Contains(watchers, name) {
		return usedResources{client, func(resource schema.GroupResource) bool {
			return (b.migrating == nil || !b.migrating(resource)) && b.api.Unused(b.ctx, resource)
		}}, nil
	}
	return client, nil
}

func (b serviceAccountClients) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	return discovery.NewDiscoveryClientForConfigOrDie(b.ConfigOrDie(name))
}
