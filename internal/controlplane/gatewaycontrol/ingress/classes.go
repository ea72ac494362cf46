package ingress

import (
	"cmp"
	"slices"

	netv1 "k8s.io/api/networking/v1"
)

// Controller is the name of kedge's controller in IngressClasses.
const Controller = "kedge.dev/gateway"

// ownClass is the class that kedge brings along.
const ownClass = "kedge"

// foreign are classes that users bring from other distributions. If nobody serves them here,
// a fault says how kedge does.
var foreign = map[string]bool{"traefik": true, "nginx": true}

// classes finds the Ingresses that kedge serves.
func (c *compiler) classes() {
	sorted := slices.SortedFunc(slices.Values(c.in.Ingresses), byAge)
	classes := map[string]*netv1.IngressClass{}
	for _, class := range c.in.Classes {
		classes[class.Name] = class
	}
	standard := defaultClass(c.in.Classes)
	for _, ingress := range sorted {
		e := &entry{Ingress: ingress, faults: map[string]bool{}}
		name := cmp.Or(classOf(ingress), standard)
		class := classes[name]
		wanted := name == ownClass || slices.Contains(c.in.ServedClasses, name)
		switch {
		case class != nil && class.Spec.Controller == Controller, class == nil && name != "" && wanted:
			c.entries = append(c.entries, e)
			c.out.Served[ingress] = true
			continue
		case class != nil && wanted:
			c.fault(e, ReasonNoController, "kedge does not serve the Ingress, because the IngressClass %q is for the controller %q. "+
				"If this controller does not run here, delete the IngressClass: `kubectl delete ingressclass %s`", name, class.Spec.Controller, name)
		case class == nil && foreign[name] && len(ingress.Status.LoadBalancer.Ingress) == 0:
			c.fault(e, ReasonNoController, "No controller here serves the class %q. "+
				"If kedge shall serve it, set gateway-ingress-classes: [%s] on the servers, or set spec.ingressClassName: %s", name, name, ownClass)
		}
		if len(ingress.Status.LoadBalancer.Ingress) > 0 {
			c.out.Left[ingress] = class == nil
		}
	}
}

// classOf returns the name of the class that an Ingress asks for, or "".
func classOf(ingress *netv1.Ingress) string {
	if name := ingress.Spec.IngressClassName; name != nil {
		return *name
	}
	return ingress.Annotations["kubernetes.io/ingress.class"]
}

// defaultClass returns the name of the class of Ingresses that ask for none, or "". Of
// several it is the newest, and then the one whose name is first, as the API server's
// admission plugin DefaultIngressClass has it.
func defaultClass(classes []*netv1.IngressClass) string {
	var found *netv1.IngressClass
	for _, class := range classes {
		if class.Annotations[netv1.AnnotationIsDefaultIngressClass] != "true" {
			continue
		}
		if found == nil || cmp.Or(found.CreationTimestamp.Compare(class.CreationTimestamp.Time), cmp.Compare(class.Name, found.Name)) < 0 {
			found = class
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}
