package lastresort

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// silent are the rules, by kind, whose cause neither an Event nor a condition says.
//
// All other rules are left out, because `kubectl describe` shows what they say:
//   - about pods, and what is wrong with a workload or a Service for the sake of its pods: the kubelet and the scheduler write Events on pods, and
//     the controllers of workloads write Events about pods that the API refuses;
//   - about claims without a volume: upstream's controller writes ProvisioningFailed or FailedBinding, also if the StorageClass does not exist
//     (pkg/controller/volume/persistentvolume);
//   - about what a controller refuses: they quote conditions and Events;
//   - about an Ingress or a route whose Service is not well: the Service has the Event;
//   - about nodes, namespaces and Plans: they are in no namespace, so their Events would be in the namespace default, whose users may not read them.
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/volume/persistentvolume/pv_controller.go PersistentVolumeController.syncUnboundClaim PersistentVolumeController.provisionClaim
var silent = map[string][]string{
	"Service":               {"service-finalizers", "selector-matches-nothing", "target-port-name", "no-endpoints-written", "load-balancer-class"},
	"Ingress":               {"ingress-class-missing", "backend-missing", "backend-port"},
	"PersistentVolumeClaim": {"claim-in-use", "claim-finalizers"},
	"Gateway":               {"gateway-class-missing"},
	"HTTPRoute":             ofRoutes,
	"GRPCRoute":             ofRoutes,
	"TLSRoute":              ofRoutes,
	"TCPRoute":              ofRoutes,
	"UDPRoute":              ofRoutes,
}

var ofRoutes = []string{"route-without-parent", "route-gateway-missing"}

// custom are the kinds of CustomResourceDefinitions.
var custom = []string{"Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"}

// kinds returns the kinds of which there may be objects.
func (o *observer) kinds(ctx context.Context) []string {
	return slices.DeleteFunc(slices.Collect(maps.Keys(silent)), func(kind string) bool {
		resource := schema.GroupResource{Group: gwv1.GroupName, Resource: strings.ToLower(kind) + "s"}
		return o.unused != nil && slices.Contains(custom, kind) && o.unused(ctx, resource)
	})
}

// isSilent tells whether nothing else says the cause of an object.
func isSilent(r *why.Report) bool {
	if r.Object == (why.Object{Kind: "Service", Namespace: "kube-system", Name: "kube-dns"}) {
		return false // it has no endpoints as long as the cluster has no node, which this user cannot know
	}
	return slices.Contains(silent[r.Object.Kind], r.Cause().Rule)
}
