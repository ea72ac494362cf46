package gatewaycontrol

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// custom is an object of the Gateway API.
type custom interface {
	metav1.Object
	runtime.Object
}

// status is the status that an object has, and the one that it must have.
type status struct {
	kind        schema.GroupVersionResource
	object      custom
	before, now any // pointers to the same type
}

// statusesOf returns the statuses of a result, in the order in which they are written.
func statusesOf(r *compile.Result) []status {
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
	custom
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

// syncStatuses writes the statuses that differ.
func (t *term) syncStatuses(ctx context.Context, newest *compiled, failed func(error)) {
	t.written.Turn()
	for _, s := range statusesOf(newest.gateways) {
		if ctx.Err() != nil {
			return
		}
		if last, is := t.written.Get(s.object); is && equality.Semantic.DeepEqual(last, s.now) {
			continue
		}
		wrote, err := t.writeStatus(ctx, s)
		if wrote {
			t.written.Set(s.object, s.now)
		}
		failed(err)
	}
}

// writeStatus writes a status if it differs in more than times. It fails with a conflict if
// the object is newer.
func (t *term) writeStatus(ctx context.Context, s status) (wrote bool, err error) {
	if equality.Semantic.DeepEqual(s.before, s.now) {
		return false, nil
	}
	changes, err := patchOf(s.before, s.now, t.now())
	if changes == nil || err != nil {
		return false, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": s.object.GetUID(), "resourceVersion": s.object.GetResourceVersion()},
		"status":   changes,
	})
	if err != nil {
		return false, fmt.Errorf("encode patch: %w", err)
	}
	client := t.custom.Resource(s.kind).Namespace(s.object.GetNamespace())
	if _, err := client.Patch(ctx, s.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return false, fmt.Errorf("write status of %s %s/%s: %w", s.kind.Resource, s.object.GetNamespace(), s.object.GetName(), err)
	}
	return true, nil
}

// timeField is the field of conditions that says since when they are so.
const timeField = "lastTransitionTime"

// patchOf returns the merge patch that leads from one status to another, or nil if they differ
// only in times. Conditions without a time get now.
func patchOf(before, after any, now time.Time) (map[string]any, error) {
	from, err := fields(before)
	if err != nil {
		return nil, err
	}
	to, err := fields(after)
	if err != nil {
		return nil, err
	}
	same, err := sameButTimes(from, to)
	if same || err != nil {
		return nil, err
	}
	fillTimes(to, now.UTC().Format(time.RFC3339))
	for key, value := range to {
		if value == nil {
			to[key] = []any{} // a list that is required
		}
	}
	// A merge patch replaces lists, and removes what is null.
	for key := range from {
		if _, stays := to[key]; !stays {
			to[key] = nil
		}
	}
	return to, nil
}

// fields returns the fields of a status.
func fields(status any) (map[string]any, error) {
	encoded, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	found := map[string]any{}
	if err := json.Unmarshal(encoded, &found); err != nil {
		return nil, fmt.Errorf("decode status: %w", err)
	}
	return found, nil
}

// sameButTimes compares two statuses without the times of conditions.
func sameButTimes(a, b map[string]any) (bool, error) {
	one, err := json.Marshal(withoutTimes(a))
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	other, err := json.Marshal(withoutTimes(b))
	if err != nil {
		return false, fmt.Errorf("encode status: %w", err)
	}
	return bytes.Equal(one, other), nil
}

// withoutTimes returns a copy of a value without the times of conditions, and without what is
// empty.
func withoutTimes(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := maps.Clone(value)
		for key, field := range copied {
			if list, is := field.([]any); key == timeField || field == nil || is && len(list) == 0 {
				delete(copied, key)
			} else {
				copied[key] = withoutTimes(field)
			}
		}
		return copied
	case []any:
		copied := slices.Clone(value)
		for i := range copied {
			copied[i] = withoutTimes(copied[i])
		}
		return copied
	}
	return value
}

// fillTimes sets the times of conditions that have none.
func fillTimes(value any, now string) {
	switch value := value.(type) {
	case map[string]any:
		if time, has := value[timeField]; has && time == nil {
			value[timeField] = now
		}
		for _, field := range value {
			fillTimes(field, now)
		}
	case []any:
		for _, element := range value {
			fillTimes(element, now)
		}
	}
}
