// Package servers knows which servers serve the API: those in the endpoints of the
// Service kubernetes. The server package makes its component.
package servers

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/published"
)

// Others is the component that knows the cluster's other servers. The node of a server
// opens tunnels to them too, because each API server reaches nodes through its own
// tunnels. Others implements tunnel.Servers.
type Others struct {
	source objectcache.Source
	own    netip.Addr
	// addresses are HOST:PORT of each, sorted.
	addresses published.Value[[]string]
}

// New makes the component. own is the address at which this server's API is known.
func New(source objectcache.Source, own netip.Addr) *Others {
	return &Others{source: source, own: own}
}

// Name implements component.Component.
func (*Others) Name() string { return "servers" }

// Run implements component.Component. It follows the endpoints of the Service kubernetes,
// to which each server adds itself.
func (o *Others) Run(ctx context.Context, ready func()) error {
	factory, err := o.source(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	_, err = factory.Discovery().V1().EndpointSlices().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    o.learn,
		UpdateFunc: func(_, object any) { o.learn(object) },
	})
	if err != nil {
		return fmt.Errorf("watch servers: %w", err)
	}
	factory.StartWithContext(ctx)
	ready()
	<-ctx.Done()
	return nil
}

// learn takes the servers from the one EndpointSlice that lists them.
func (o *Others) learn(object any) {
	endpoints, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || endpoints.Namespace != metav1.NamespaceDefault || endpoints.Name != "kubernetes" {
		return
	}
	addresses := Addresses(endpoints, o.own.String())
	if before, _ := o.addresses.Get(); !slices.Equal(addresses, before) {
		o.addresses.Set(addresses)
	}
}

// Addresses returns HOST:PORT of all servers in the EndpointSlice of the Service
// kubernetes, sorted. It leaves out those with the address except, which may be empty.
func Addresses(endpoints *discoveryv1.EndpointSlice, except string) (addresses []string) {
	for _, port := range endpoints.Ports {
		for _, endpoint := range endpoints.Endpoints {
			if port.Port == nil || len(endpoint.Addresses) == 0 || endpoint.Addresses[0] == except {
				continue
			}
			addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
		}
	}
	slices.Sort(addresses)
	return addresses
}

// IPs returns the addresses of all servers in an EndpointSlice of the Service kubernetes.
func IPs(endpoints *discoveryv1.EndpointSlice) (found []netip.Addr) {
	for _, endpoint := range endpoints.Endpoints {
		for _, text := range endpoint.Addresses {
			if ip, err := netip.ParseAddr(text); err == nil {
				found = append(found, ip.Unmap())
			}
		}
	}
	return found
}

// Servers implements tunnel.Servers.
func (o *Others) Servers() ([]string, <-chan struct{}) { return o.addresses.Get() }
