package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

// The API server dials kubelets by the names of their nodes, so that TLS refuses the
// kubelet of another node. For the subresource proxy of nodes, upstream resolves the
// name with net.DefaultResolver before it dials (isProxyableHostname in
// pkg/registry/core/node/strategy.go), but names of nodes need not be in any DNS. For
// these requests the resolver is told the node's addresses, by a context key that
// package net has for its own tests (net/lookup.go, lookupIPAddr). A test of this
// package fails if a newer Go no longer has the key.

// resolveNodes makes requests for the subresource proxy of a node resolve the names of
// nodes.
//
//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/node/strategy.go isProxyableHostname ResourceLocation
func (d *egressDialer) resolveNodes(build func(http.Handler, *genericapiserver.Config) http.Handler) func(http.Handler, *genericapiserver.Config) http.Handler {
	return func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if info, ok := request.RequestInfoFrom(r.Context()); ok && info.APIGroup == "" && info.Resource == "nodes" && info.Subresource == "proxy" {
				r = r.WithContext(resolving{r.Context(), d})
			}
			handler.ServeHTTP(w, r)
		}), c)
	}
}

// resolving is the context of a request in which names of nodes are resolved.
type resolving struct {
	context.Context
	dialer *egressDialer
}

// Value implements context.Context.
//
//upstream:relies-on std/net/lookup.go Resolver.lookupIPAddr
//upstream:relies-on std/internal/nettrace/nettrace.go LookupIPAltResolverKey
func (r resolving) Value(key any) any {
	if kind := reflect.TypeOf(key); kind != nil && kind.Name() == "LookupIPAltResolverKey" && kind.PkgPath() == "internal/nettrace" {
		return r.lookup
	}
	return r.Context.Value(key)
}

// lookup returns the addresses of a node. It asks the system's resolver for other names.
func (r resolving) lookup(_ context.Context, _, host string) ([]net.IPAddr, error) {
	var ips []net.IPAddr
	if host == r.dialer.NodeName {
		for _, ip := range r.dialer.NodeIPs {
			ips = append(ips, net.IPAddr{IP: ip.AsSlice()})
		}
		return ips, nil
	}
	object, found, err := r.dialer.nodes.GetIndexer().GetByKey(host)
	if err != nil || !found {
		// A new resolver, because the one that asks would wait for itself.
		return new(net.Resolver).LookupIPAddr(r.Context, host)
	}
	for _, ip := range nodeobject.Addresses(object.(*corev1.Node)) {
		ips = append(ips, net.IPAddr{IP: ip.AsSlice()})
	}
	if len(ips) == 0 {
		return nil, fmt.Errorf("node %s has no address", host)
	}
	return ips, nil
}
