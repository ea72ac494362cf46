// Package statuses writes what the packages compile and ingress have worked out into the statuses of
// Gateways, routes, policies and Ingresses. Package gatewaycontrol calls it on the elected server.
//
// Functions of this package also say which conditions are faults (Faults), and correct a result before it
// is written, if nodes or fronts cannot serve what compile has accepted (RefuseRoutes, WithoutAddresses).
package statuses

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// status is the status that an object has, and the one that it must have.
type status struct {
	kind        schema.GroupVersionResource
	object      faults.Object
	before, now any // pointers to the same type
}

// allOf returns the statuses of a result, in the order in which they are written.
func allOf(r *compile.Result) []status {
	return slices.Concat(
		of(kinds.Classes, r.Classes, func(o *gwv1.GatewayClass) *gwv1.GatewayClassStatus { return &o.Status }),
		of(kinds.Gateways, r.Gateways, func(o *gwv1.Gateway) *gwv1.GatewayStatus { return &o.Status }),
		of(kinds.ListenerSets, r.ListenerSets, func(o *gwv1.ListenerSet) *gwv1.ListenerSetStatus { return &o.Status }),
		of(kinds.HTTPRoutes, r.HTTPRoutes, func(o *gwv1.HTTPRoute) *gwv1.HTTPRouteStatus { return &o.Status }),
		of(kinds.GRPCRoutes, r.GRPCRoutes, func(o *gwv1.GRPCRoute) *gwv1.GRPCRouteStatus { return &o.Status }),
		of(kinds.TLSRoutes, r.TLSRoutes, func(o *gwv1.TLSRoute) *gwv1.TLSRouteStatus { return &o.Status }),
		of(kinds.TCPRoutes, r.TCPRoutes, func(o *gwv1.TCPRoute) *gwv1.TCPRouteStatus { return &o.Status }),
		of(kinds.UDPRoutes, r.UDPRoutes, func(o *gwv1.UDPRoute) *gwv1.UDPRouteStatus { return &o.Status }),
		of(kinds.Policies, r.Policies, func(o *gwv1.BackendTLSPolicy) *gwv1.PolicyStatus { return &o.Status }),
	)
}

// of returns the statuses of one kind, sorted by name.
func of[O interface {
	faults.Object
	comparable
}, S any](kind schema.GroupVersionResource, all map[O]*S, before func(O) *S) []status {
	statuses := make([]status, 0, len(all))
	for object, now := range all {
		statuses = append(statuses, status{kind, object, before(object), now})
	}
	slices.SortFunc(statuses, func(a, b status) int {
		return cmp.Or(cmp.Compare(a.object.GetNamespace(), b.object.GetNamespace()), cmp.Compare(a.object.GetName(), b.object.GetName()))
	})
	return statuses
}

// Writer writes statuses. One goroutine uses it.
type Writer struct {
	Client  dynamic.Interface
	written objectcache.Written[any]
}

// Write writes the statuses of a result that differ from what the objects have. It calls failed
// with each error, and with nil.
func (w *Writer) Write(ctx context.Context, r *compile.Result, failed func(error)) {
	w.written.Turn()
	for _, s := range allOf(r) {
		if ctx.Err() != nil {
			return
		}
		if last, is := w.written.Get(s.object); is && equality.Semantic.DeepEqual(last, s.now) {
			continue
		}
		wrote, err := w.write(ctx, s)
		if wrote {
			w.written.Set(s.object, s.now)
		}
		failed(err)
	}
}

// write writes a status if it differs in more than times. It fails with a conflict if the object
// is newer.
func (w *Writer) write(ctx context.Context, s status) (wrote bool, err error) {
	if equality.Semantic.DeepEqual(s.before, s.now) {
		return false, nil
	}
	changes, err := patchOf(s.before, s.now, time.Now())
	if changes == nil || err != nil {
		return false, err
	}
	err = mergepatch.Send(ctx, w.Client.Resource(s.kind).Namespace(s.object.GetNamespace()), s.object.GetName(), map[string]any{
		"metadata": map[string]any{"uid": s.object.GetUID(), "resourceVersion": s.object.GetResourceVersion()},
		"status":   changes,
	}, "status")
	if err != nil {
		return false, fmt.Errorf("write status of %s %s/%s: %w", s.kind.Resource, s.object.GetNamespace(), s.object.GetName(), err)
	}
	return true, nil
}
