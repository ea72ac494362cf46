package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// serviceWay is how a request reaches a pod of a Service.
var serviceWay = slices.Concat([]stage[*corev1.Service]{
	{name: "deletion", rules: []rule[*corev1.Service]{
		{"service-finalizers", func(w *world, s *corev1.Service) *finding { return stuck(w, "service", s) }},
	}, passed: func(_ *world, s *corev1.Service) string {
		if s.DeletionTimestamp != nil {
			return ""
		}
		return "nobody has deleted it"
	}, waiting: "the Service is being deleted"},
}, podsOfService, []stage[*corev1.Service]{
	{name: "address", rules: addresses, passed: func(_ *world, s *corev1.Service) string {
		switch {
		case s.Spec.Type == corev1.ServiceTypeExternalName:
			return "clients go to " + s.Spec.ExternalName
		case s.Spec.ClusterIP == corev1.ClusterIPNone:
			return "its name has the addresses of its pods"
		case s.Spec.Type != corev1.ServiceTypeLoadBalancer:
			return "it answers at " + cmp.Or(s.Spec.ClusterIP, "none")
		case len(s.Status.LoadBalancer.Ingress) == 0:
			return ""
		}
		var all []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			all = append(all, i.IP+i.Hostname)
		}
		return "it answers at " + few(all)
	}, waiting: "the load balancer has not given it an address yet"},
})

// podsOfService is the part of the way that Ingresses and routes need, too: they do not need the address of the Service.
var podsOfService = []stage[*corev1.Service]{
	{name: "selector", rules: selector, passed: func(w *world, s *corev1.Service) string {
		switch {
		case s.Spec.Type == corev1.ServiceTypeExternalName:
			return "the name leads to " + s.Spec.ExternalName
		case len(s.Spec.Selector) == 0:
			return "it has no selector, so a controller or a user writes its endpoints"
		}
		return "pods with its labels: " + fmt.Sprint(len(selected(w, s)))
	}},
	{name: "ports", rules: ports, passed: func(w *world, s *corev1.Service) string {
		if len(selected(w, s)) == 0 {
			return "it selects no pods whose ports could be wrong"
		}
		return "its pods have these ports"
	}},
	{name: "endpoints", rules: endpoints, passed: func(w *world, s *corev1.Service) string {
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			return "it needs none"
		}
		n := endpointsOf(w, s)
		switch {
		case w.isHidden("EndpointSlices"):
			return "they are not known, because you may not read EndpointSlices"
		case n == 0:
			return ""
		}
		return "endpoints that get requests: " + fmt.Sprint(n)
	}, waiting: "no pod gets requests yet"},
}

// selector says why a Service selects no pod.
var selector = []rule[*corev1.Service]{
	{"selector-matches-nothing", func(w *world, s *corev1.Service) *finding {
		if len(s.Spec.Selector) == 0 || len(selected(w, s)) > 0 || w.isHidden("pods") {
			return nil
		}
		pods := podsOf(w, s.Namespace)
		if len(pods) == 0 {
			return found("see whether the workload of these pods exists, and is in the namespace of the Service: kubectl get deployments,statefulsets,daemonsets -A", "the Service selects pods with %s, and namespace %s has no pods", labels.FormatLabels(s.Spec.Selector), s.Namespace)
		}
		nearest := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return alike(s.Spec.Selector, a.Labels) - alike(s.Spec.Selector, b.Labels) })
		wrong := wrongLabels(s.Spec.Selector, nearest.Labels)
		has := "has no such label"
		for _, key := range slices.Sorted(maps.Keys(s.Spec.Selector)) {
			if value, ok := nearest.Labels[key]; ok && value != s.Spec.Selector[key] {
				wrong, has = key+"="+s.Spec.Selector[key], "has "+key+"="+value
				break
			}
		}
		if alike(s.Spec.Selector, nearest.Labels) == 0 {
			return found(fmt.Sprintf("correct the selector of the Service, or see whether the workload of these pods exists: kubectl -n %s get pods --show-labels", s.Namespace), "the Service selects pods with %s, and no pod of namespace %s has such labels", labels.FormatLabels(s.Spec.Selector), s.Namespace)
		}
		return found(fmt.Sprintf("give the selector of the Service and the pods the same labels: kubectl -n %s edit service %s", s.Namespace, s.Name), "the Service selects pods with %s, and no pod has these labels. The pod %s comes nearest: instead of %s it %s", labels.FormatLabels(s.Spec.Selector), nearest.Name, wrong, has)
	}},
}

// ports says why a Service leads to no port of its pods.
var ports = []rule[*corev1.Service]{
	{"target-port-name", func(w *world, s *corev1.Service) *finding {
		for _, port := range s.Spec.Ports {
			if port.TargetPort.Type != intstr.String {
				continue
			}
			pods := selected(w, s)
			if len(pods) == 0 || slices.ContainsFunc(pods, func(p corev1.Pod) bool {
				return hasPort(&p, func(c corev1.ContainerPort) bool {
					return c.Name == port.TargetPort.StrVal && cmp.Or(c.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP)
				})
			}) {
				continue
			}
			return found("give a port of the container that name, or set targetPort of the Service to the number of the port", "the Service sends to the %[2]s port named %[1]s of its pods, and their ports are %[3]s", port.TargetPort.StrVal, cmp.Or(port.Protocol, corev1.ProtocolTCP), cmp.Or(few(portNames(&pods[0])), "none"))
		}
		return nil
	}},
	{"target-port-number", func(w *world, s *corev1.Service) *finding {
		for _, port := range s.Spec.Ports {
			pods := selected(w, s)
			if port.TargetPort.Type == intstr.String || len(pods) == 0 || len(portNames(&pods[0])) == 0 || s.Spec.ClusterIP == corev1.ClusterIPNone {
				continue
			}
			number := port.TargetPort.IntVal
			if number == 0 {
				number = port.Port
			}
			if slices.ContainsFunc(pods, func(p corev1.Pod) bool {
				return hasPort(&p, func(c corev1.ContainerPort) bool { return c.ContainerPort == number })
			}) {
				continue
			}
			f := found("correct targetPort of the Service, unless the program listens at that port", "the Service sends to port %d of its pods, and their containers have the ports %s", number, few(portNames(&pods[0])))
			f.mild = true
			return f
		}
		return nil
	}},
}

// endpoints says why no pod of a Service gets requests.
var endpoints = []rule[*corev1.Service]{
	{"pods-of-service", func(w *world, s *corev1.Service) *finding {
		pods := selected(w, s)
		if len(pods) == 0 || endpointsOf(w, s) > 0 || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return ready(&p) }) {
			return nil
		}
		for _, pod := range newestFirst(slices.Clone(pods)) {
			if f := failed(walk(w, &pod, podWay)); f != nil {
				f.says = fmt.Sprintf("no pod of the Service is ready. Pod %s: %s", pod.Name, f.says)
				return f
			}
		}
		return nil
	}},
	{"no-endpoints-written", func(w *world, s *corev1.Service) *finding {
		if len(s.Spec.Selector) > 0 || s.Spec.Type == corev1.ServiceTypeExternalName || endpointsOf(w, s) > 0 || w.isHidden("EndpointSlices") {
			return nil
		}
		if nodes, ok := list(w, w.Kubernetes.CoreV1().Nodes(), "nodes", ""); ok && len(nodes.Items) == 0 {
			return nil // kedge's own Service of DNS is like this until there is a node
		}
		return found("give the Service a selector, or create an EndpointSlice with the label kubernetes.io/service-name: "+s.Name, "the Service has no selector and no endpoints")
	}},
}

// addresses says why a Service has no address outside of the cluster.
var addresses = []rule[*corev1.Service]{
	{"load-balancer-class", pending(func(w *world, s *corev1.Service) *finding {
		if s.Spec.LoadBalancerClass == nil {
			return nil
		}
		return found("see whether the controller of that load balancer runs. To use kedge's, create the Service again without loadBalancerClass", "the Service waits for the load balancer of its loadBalancerClass %s", *s.Spec.LoadBalancerClass)
	})},
	{"load-balancer-refuses", pending(func(w *world, s *corev1.Service) *finding {
		for _, c := range s.Status.Conditions {
			if c.Type == servicelb.Condition && c.Status == metav1.ConditionFalse && c.Reason != servicelb.Waiting && c.Message != "" {
				return found("see docs/load-balancer.md", "the load balancer gives the Service no address: %s", plain(c.Message))
			}
		}
		if e := w.warning(s); e != nil && len(s.Status.Conditions) == 0 {
			return found("see the documentation of that load balancer", "the load balancer gives the Service no address: %s", plain(e.Message)) // another one than kedge's
		}
		return nil
	})},
}

// pending applies a rule to Services that wait for an address.
func pending(find func(*world, *corev1.Service) *finding) func(*world, *corev1.Service) *finding {
	return func(w *world, s *corev1.Service) *finding {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || len(s.Status.LoadBalancer.Ingress) > 0 {
			return nil
		}
		return find(w, s)
	}
}

// selected returns the pods that a Service selects. Several rules ask for them.
func selected(w *world, s *corev1.Service) []corev1.Pod {
	if len(s.Spec.Selector) == 0 {
		return nil
	}
	pods, _ := read(w, fmt.Sprintf("selected pods|%s/%s", s.Namespace, s.Name), func() (pods []corev1.Pod, _ error) {
		wanted := labels.SelectorFromSet(s.Spec.Selector)
		all := podsOf(w, s.Namespace)
		for i := range all {
			if wanted.Matches(labels.Set(all[i].Labels)) && !finished(&all[i]) {
				pods = append(pods, all[i])
			}
		}
		return pods, nil
	})
	return pods
}

// alike returns how near the labels of an object are to a selector. A label counts two, and one if only its key is right.
func alike(selector, has map[string]string) (points int) {
	for key, value := range selector {
		got, ok := has[key]
		if ok {
			points++
		}
		if ok && got == value {
			points++
		}
	}
	return points
}

// hasPort tells whether a container that keeps running has such a port.
func hasPort(p *corev1.Pod, fits func(corev1.ContainerPort) bool) bool {
	return slices.ContainsFunc(containers(p), func(c container) bool { return (!c.init || c.sidecar()) && slices.ContainsFunc(c.Ports, fits) })
}

// portNames returns the ports of a pod, such as "http (8080)".
func portNames(p *corev1.Pod) (all []string) {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			all = append(all, portText(port.Name, port.ContainerPort))
		}
	}
	return all
}

// portText returns the words for a port, which may have no name.
func portText(name string, number int32) string {
	if name == "" {
		return fmt.Sprint(number)
	}
	return fmt.Sprintf("%s (%d)", name, number)
}

// endpointsOf counts the endpoints of a Service that get requests.
func endpointsOf(w *world, s *corev1.Service) (n int) {
	slices, ok := list(w, w.Kubernetes.DiscoveryV1().EndpointSlices(s.Namespace), "EndpointSlices", s.Namespace)
	if !ok {
		return 0
	}
	for _, slice := range slices.Items {
		if slice.Labels[discoveryv1.LabelServiceName] != s.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				n++
			}
		}
	}
	return n
}
