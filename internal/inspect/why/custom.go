package why

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
)

// The kinds that CustomResourceDefinitions make.
var (
	gatewayClasses = gatewayResource("gatewayclasses")
	gateways       = gatewayResource("gateways")
	charts         = schema.GroupVersionResource{Group: "helm.cattle.io", Version: "v1", Resource: "helmcharts"}
)

func gatewayResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gwv1.GroupName, Version: gwv1.GroupVersion.Version, Resource: name}
}

// custom returns the kinds of CustomResourceDefinitions. The cluster may not have all of them.
func custom() []kind {
	return []kind{
		explained("Gateway", "Gateways", []string{"gateway", "gateways", "gtw"}, untyped(gateways), as(gatewayWay)),
		ofRoute("HTTPRoute"), ofRoute("GRPCRoute"), ofRoute("TLSRoute"), ofRoute("TCPRoute"), ofRoute("UDPRoute"),
		explained("HelmChart", "HelmCharts", []string{"helmchart", "helmcharts"}, untyped(charts), along(chartWay)),
		explained("VolumeBackup", "VolumeBackups", []string{"volumebackup", "volumebackups"}, untyped(volumebackups.Resource), as(volumeBackupWay)),
		ofCluster(explained("Plan", "Plans", []string{"plan", "plans"}, untyped(upgrades.Plans), as(planWay))),
	}
}

// dynamicClient has the methods of a typed client.
type dynamicClient struct{ dynamic.ResourceInterface }

// Get implements getter.
func (c dynamicClient) Get(ctx context.Context, name string, options metav1.GetOptions) (*unstructured.Unstructured, error) {
	return c.ResourceInterface.Get(ctx, name, options)
}

// untyped returns how to ask for objects of a kind.
func untyped(kind schema.GroupVersionResource) func(w *world, namespace string) client[*unstructured.Unstructured, *unstructured.UnstructuredList] {
	return func(w *world, namespace string) client[*unstructured.Unstructured, *unstructured.UnstructuredList] {
		return dynamicClient{w.Dynamic.Resource(kind).Namespace(namespace)}
	}
}

// as returns the steps of one way, for an object that is read as a T first.
func as[T any](way []stage[*T]) func(*world, *unstructured.Unstructured) []Step {
	return func(w *world, object *unstructured.Unstructured) []Step {
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
			w.fault = fmt.Errorf("read %s %s: %w", object.GetKind(), object.GetName(), err)
			return nil
		}
		return walk(w, typed, way)
	}
}

// isFalse returns the condition of a type that does not hold, or nil.
func isFalse[T ~string](conditions []metav1.Condition, kind T) *metav1.Condition {
	if c := meta.FindStatusCondition(conditions, string(kind)); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	return nil
}

// seeGateway is the page about what the gateway takes.
const seeGateway = "see docs/gateway.md"

// gatewayWay is what a Gateway needs.
var gatewayWay = []stage[*gwv1.Gateway]{
	{name: "class", rules: []rule[*gwv1.Gateway]{
		{"gateway-class-missing", func(w *world, g *gwv1.Gateway) *finding {
			api := untyped(gatewayClasses)(w, "")
			if !classMissing(w, api, "GatewayClass", string(g.Spec.GatewayClassName)) {
				return nil
			}
			return found("correct spec.gatewayClassName. "+classNames(w, api, "GatewayClass"), "there is no GatewayClass %s, so no controller serves the Gateway", g.Spec.GatewayClassName)
		}},
	}, passed: func(_ *world, g *gwv1.Gateway) string {
		return "the GatewayClass " + string(g.Spec.GatewayClassName) + " is there"
	}},
	{name: "acceptance", rules: []rule[*gwv1.Gateway]{
		{"gateway-refused", func(_ *world, g *gwv1.Gateway) *finding {
			c := isFalse(g.Status.Conditions, gwv1.GatewayConditionAccepted)
			if c == nil || c.Reason == string(gwv1.GatewayReasonListenersNotValid) {
				return nil
			}
			return found(seeGateway, "the Gateway is refused: %s", plain(c.Message))
		}},
		{"listener-refused", func(_ *world, g *gwv1.Gateway) *finding {
			for _, l := range g.Status.Listeners {
				for _, kind := range []gwv1.ListenerConditionType{gwv1.ListenerConditionAccepted, gwv1.ListenerConditionResolvedRefs, gwv1.ListenerConditionProgrammed} {
					if c := isFalse(l.Conditions, kind); c != nil {
						return found(seeGateway, "the listener %s is refused: %s", l.Name, plain(c.Message))
					}
				}
			}
			return nil
		}},
	}, passed: func(_ *world, g *gwv1.Gateway) string {
		if !meta.IsStatusConditionTrue(g.Status.Conditions, string(gwv1.GatewayConditionAccepted)) {
			return ""
		}
		return "the Gateway and its listeners are accepted"
	}, waiting: "no controller has looked at the Gateway yet"},
	{name: "address", rules: []rule[*gwv1.Gateway]{
		{"gateway-not-programmed", func(_ *world, g *gwv1.Gateway) *finding {
			c := isFalse(g.Status.Conditions, gwv1.GatewayConditionProgrammed)
			if c == nil {
				return nil
			}
			return found(seeGateway, "the Gateway does not answer yet: %s", plain(c.Message))
		}},
	}, passed: func(_ *world, g *gwv1.Gateway) string {
		var all []string
		for _, a := range g.Status.Addresses {
			all = append(all, a.Value)
		}
		if len(all) == 0 {
			return ""
		}
		return "it answers at " + few(all)
	}, waiting: "it has no address yet"},
}

// route is what the routes of all kinds of the Gateway API have in common.
type route struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		gwv1.CommonRouteSpec `json:",inline"`
		Rules                []struct {
			BackendRefs []gwv1.BackendRef `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
	Status gwv1.RouteStatus `json:"status"`
}

// ofRoute returns the kind of a route.
func ofRoute(name string) kind {
	plural := strings.ToLower(name) + "s"
	return explained(name, name+"s", []string{strings.ToLower(name), plural}, untyped(gatewayResource(plural)), as(routeWay))
}

// routeWay is how a request reaches a Service of a route.
var routeWay = []stage[*route]{
	{name: "gateway", rules: []rule[*route]{
		{"route-without-parent", func(_ *world, r *route) *finding {
			if len(r.Spec.ParentRefs) > 0 {
				return nil
			}
			return found("name the Gateway in spec.parentRefs", "the route names no Gateway, so no requests reach it")
		}},
		{"route-gateway-missing", func(w *world, r *route) *finding {
			for _, parent := range r.Spec.ParentRefs {
				if parent.Kind != nil && *parent.Kind != "Gateway" {
					continue
				}
				namespace := r.Namespace
				if parent.Namespace != nil {
					namespace = string(*parent.Namespace)
				}
				// The user may be able to read those of one namespace only.
				ofNamespace := "Gateways of namespace " + namespace
				if _, ok := get(w, untyped(gateways)(w, namespace), ofNamespace, namespace, string(parent.Name)); !ok && !w.isHidden(ofNamespace) {
					return found("create the Gateway, or correct spec.parentRefs: kubectl get gateways --all-namespaces", "the route belongs to the Gateway %s, and namespace %s has none of that name", parent.Name, namespace)
				}
			}
			return nil
		}},
		{"route-refused", func(_ *world, r *route) *finding {
			for _, parent := range r.Status.Parents {
				if c := isFalse(parent.Conditions, gwv1.RouteConditionAccepted); c != nil {
					return found(seeGateway, "the Gateway %s refuses the route (%s): %s", parent.ParentRef.Name, c.Reason, plain(c.Message))
				}
			}
			return nil
		}},
	}, passed: func(_ *world, r *route) string {
		var all []string
		for _, parent := range r.Status.Parents {
			all = append(all, string(parent.ParentRef.Name))
		}
		if len(all) == 0 {
			return ""
		}
		return "accepted by " + few(all)
	}, waiting: "no Gateway has looked at the route yet"},
	{name: "backends", rules: []rule[*route]{
		{"route-backend-refused", func(_ *world, r *route) *finding {
			for _, parent := range r.Status.Parents {
				if c := isFalse(parent.Conditions, gwv1.RouteConditionResolvedRefs); c != nil {
					return found("correct backendRefs of the route", "the route cannot use a backend (%s): %s", c.Reason, plain(c.Message))
				}
			}
			return nil
		}},
		{"route-backend-unwell", func(w *world, r *route) *finding {
			for _, rule := range r.Spec.Rules {
				for _, b := range rule.BackendRefs {
					if b.Kind != nil && *b.Kind != "Service" || b.Namespace != nil && string(*b.Namespace) != r.Namespace {
						continue
					}
					s, ok := service(w, r.Namespace, string(b.Name))
					if !ok || s.Spec.Type == corev1.ServiceTypeExternalName {
						continue
					}
					if f := failed(walk(w, s, podsOfService)); f != nil {
						f.says = fmt.Sprintf("the Service %s: %s", b.Name, f.says)
						return f
					}
				}
			}
			return nil
		}},
	}, passed: func(*world, *route) string { return "its Services have pods for requests" }},
}

// chartWay is what happens to a HelmChart.
var chartWay = []stage[*unstructured.Unstructured]{
	{name: "installation", rules: []rule[*unstructured.Unstructured]{
		{"chart-failed", func(_ *world, o *unstructured.Unstructured) *finding {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, item := range conditions {
				if c, ok := item.(map[string]any); ok && c["type"] == "Failed" && c["status"] == "True" {
					return found(fmt.Sprintf("correct the HelmChart: kubectl -n %s edit helmchart %s. See docs/add-ons.md", o.GetNamespace(), o.GetName()), "the chart is not installed (%v): %s", c["reason"], plain(fmt.Sprint(c["message"])))
				}
			}
			return nil
		}},
	}, passed: func(_ *world, o *unstructured.Unstructured) string {
		revision, ok, _ := unstructured.NestedInt64(o.Object, "status", "revision")
		if !ok {
			return ""
		}
		return fmt.Sprintf("revision %d is installed", revision)
	}, waiting: "the chart is not installed yet"},
}

// planWay is what happens to a Plan.
var planWay = []stage[*upgrades.Plan]{
	{name: "upgrade", rules: []rule[*upgrades.Plan]{
		{"plan-stopped", func(_ *world, p *upgrades.Plan) *finding {
			if p.Status.Phase != upgrades.Stopped {
				return nil
			}
			return found("remove the cause, and make a new Plan: see docs/upgrades.md", "the upgrade was stopped: %s", plain(p.Status.Message))
		}},
	}, passed: func(_ *world, p *upgrades.Plan) string {
		if p.Status.Phase != upgrades.Complete {
			return ""
		}
		return "all nodes run " + p.Status.Version
	}, waiting: "the upgrade goes on: kubectl get plans shows how far it is"},
}

// volumeBackupWay is what happens to a VolumeBackup.
var volumeBackupWay = []stage[*volumebackups.VolumeBackup]{
	{name: "backup", rules: []rule[*volumebackups.VolumeBackup]{
		{"volume-backup-failed", func(_ *world, v *volumebackups.VolumeBackup) *finding {
			if v.Status.Phase != volumebackups.Failed {
				return nil
			}
			return found("remove the cause, and make a new VolumeBackup: see docs/backup.md", "the contents of the volume were not backed up: %s", plain(v.Status.Message))
		}},
	}, passed: func(_ *world, v *volumebackups.VolumeBackup) string {
		if v.Status.Phase != volumebackups.Completed {
			return ""
		}
		return fmt.Sprintf("the contents are in the backup: %s, of which %s were sent", v.Status.Size, v.Status.Sent)
	}, waiting: "the backup waits for its turn, or goes on: kubectl get volumebackups shows how far it is"},
}
