package console

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// The size of the boxes of a map, in units of the picture.
const (
	boxWidth, boxHeight = 180, 34
	boxGap              = 12
	columnGap           = 90
)

// box is an object on a map.
type box struct {
	Kind, Name, Says, Link string
	X, Y, TextY, SaysY     int
	key                    string
}

// Width and Height are those of each box.
func (box) Width() int  { return boxWidth }
func (box) Height() int { return boxHeight }

// arrow leads from one box to another.
type arrow struct {
	X1, Y1, X2, Y2 int
	From, To       string
}

// chart is a map: what comes in at the left, Services in the middle, and workloads at the right.
type chart struct {
	Name          string
	Boxes         []box
	Arrows        []arrow
	Width, Height int
}

// reach shows who reaches whom in a namespace: Ingresses and routes, Services, and workloads.
var reach = view{"map", func(v *visit) string { return "Map of namespace " + v.value("namespace") }, func(v *visit) any {
	name := v.value("namespace")
	columns := make([][]box, 3)
	var leads [][2]string
	for _, e := range v.entries(name) {
		columns[0] = append(columns[0], e.box)
		for _, service := range e.services {
			leads = append(leads, [2]string{e.box.key, "service/" + service})
		}
	}
	workloads := v.workloads(name)
	pods := map[string]labels.Set{}
	if all := listed(v, "pods", v.Clients.Kubernetes.CoreV1().Pods(name).List); all != nil {
		for _, pod := range all.Items {
			pods[pod.Name] = pod.Labels
		}
	}
	for _, w := range workloads {
		b := box{Kind: strings.ToLower(w.Kind), Name: w.Name, Says: w.Ready}
		if b.Kind == "" {
			b.Kind = "pod"
		}
		b.key, b.Link = b.Kind+"/"+b.Name, path("namespaces", name, b.Kind, b.Name)
		columns[2] = append(columns[2], b)
	}
	if services := listed(v, "Services", v.Clients.Kubernetes.CoreV1().Services(name).List); services != nil {
		for _, service := range services.Items {
			b := box{Kind: "service", Name: service.Name, Says: ports(&service), Link: path("namespaces", name, "service", service.Name), key: "service/" + service.Name}
			columns[1] = append(columns[1], b)
			if len(service.Spec.Selector) == 0 {
				continue
			}
			selector := labels.SelectorFromSet(service.Spec.Selector)
			for i, w := range workloads {
				if slices.ContainsFunc(w.Pods, func(p podRow) bool { return selector.Matches(pods[p.Name]) }) {
					leads = append(leads, [2]string{b.key, columns[2][i].key})
				}
			}
		}
	}
	return place(name, columns, leads)
}}

// place gives boxes and arrows their places.
func place(name string, columns [][]box, leads [][2]string) chart {
	c := chart{Name: name, Width: 3*boxWidth + 2*columnGap}
	at := map[string]box{}
	for i, column := range columns {
		for j, b := range column {
			b.X, b.Y = i*(boxWidth+columnGap), boxGap+j*(boxHeight+boxGap)
			b.TextY, b.SaysY = b.Y+14, b.Y+28
			at[b.key] = b
			c.Boxes = append(c.Boxes, b)
			c.Height = max(c.Height, b.Y+boxHeight+boxGap)
		}
	}
	for _, lead := range leads {
		from, ok := at[lead[0]]
		to, there := at[lead[1]]
		if ok && there {
			c.Arrows = append(c.Arrows, arrow{from.X + boxWidth, from.Y + boxHeight/2, to.X, to.Y + boxHeight/2, lead[0], lead[1]})
		}
	}
	return c
}

// ports prints the ports of a Service.
func ports(service *corev1.Service) string {
	var all []string
	for _, port := range service.Spec.Ports {
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%d/%s", port.Port, port.Protocol), "/TCP"))
	}
	return strings.Join(all, ", ")
}

// entry is what brings requests from outside.
type entry struct {
	box      box
	services []string
}

// entries returns the Ingresses and HTTPRoutes of a namespace.
func (v *visit) entries(namespace string) (all []entry) {
	if ingresses := listed(v, "Ingresses", v.Clients.Kubernetes.NetworkingV1().Ingresses(namespace).List); ingresses != nil {
		for _, ingress := range ingresses.Items {
			all = append(all, entryOf(namespace, "ingress", ingress.Name, ingressHosts(&ingress), ingressServices(&ingress)))
		}
	}
	if routes := listed(v, "HTTPRoutes", v.Clients.Dynamic.Resource(kinds["httproute"]).Namespace(namespace).List); routes != nil {
		for _, route := range routes.Items {
			hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hostnames")
			all = append(all, entryOf(namespace, "httproute", route.GetName(), hosts, routeServices(&route)))
		}
	}
	return all
}

func entryOf(namespace, kind, name string, hosts, services []string) entry {
	if len(hosts) == 0 {
		hosts = []string{"all hosts"}
	}
	return entry{box{Kind: kind, Name: name, Says: strings.Join(hosts, ", "), Link: path("namespaces", namespace, kind, name), key: kind + "/" + name}, services}
}

func ingressHosts(ingress *networkingv1.Ingress) (hosts []string) {
	for _, rule := range ingress.Spec.Rules {
		if rule.Host != "" && !slices.Contains(hosts, rule.Host) {
			hosts = append(hosts, rule.Host)
		}
	}
	return hosts
}

func ingressServices(ingress *networkingv1.Ingress) (names []string) {
	add := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil && !slices.Contains(names, b.Service.Name) {
			names = append(names, b.Service.Name)
		}
	}
	add(ingress.Spec.DefaultBackend)
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			add(&p.Backend)
		}
	}
	return names
}

// routeServices returns the Services of an HTTPRoute in its own namespace.
func routeServices(route *unstructured.Unstructured) (names []string) {
	rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
	for _, rule := range rules {
		fields, _ := rule.(map[string]any)
		backends, _, _ := unstructured.NestedSlice(fields, "backendRefs")
		for _, backend := range backends {
			fields, _ := backend.(map[string]any)
			name, _, _ := unstructured.NestedString(fields, "name")
			kind, _, _ := unstructured.NestedString(fields, "kind")
			namespace, _, _ := unstructured.NestedString(fields, "namespace")
			if name != "" && (kind == "" || kind == "Service") && (namespace == "" || namespace == route.GetNamespace()) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
