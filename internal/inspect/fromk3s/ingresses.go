package fromk3s

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// traefik is the ingress controller that k3s brings, and the name of its classes.
const traefik = "traefik"

// ingressAnnotations are the prefixes of annotations on Ingresses that other controllers read,
// and kedge's gateway does not.
var ingressAnnotations = []string{"traefik.ingress.kubernetes.io/", "nginx.ingress.kubernetes.io/", "haproxy.org/"}

// judgeIngress says what becomes of an Ingress in a cluster that has kedge's gateway. An
// Ingress without a class gets the default one. The API server of k3s has given each Ingress
// that it stores a class.
func judgeIngress(ingress *unstructured.Unstructured) (Result, string) {
	class, _, _ := unstructured.NestedString(ingress.Object, "spec", "ingressClassName")
	class = cmp.Or(class, ingress.GetAnnotations()["kubernetes.io/ingress.class"])
	var says []string
	if class == traefik {
		says = append(says, "The gateway serves the class "+config.GatewayClass+". Set gateway-ingress-classes: "+traefik+" in kedge's configuration, or ingressClassName: "+config.GatewayClass+" here.")
	}
	var ignored []string
	for name := range ingress.GetAnnotations() {
		if slices.ContainsFunc(ingressAnnotations, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			ignored = append(ignored, name)
		}
	}
	// An Ingress of another class stays with the controller that the user has for it.
	if len(ignored) > 0 && (class == "" || class == traefik || class == config.GatewayClass) {
		slices.Sort(ignored)
		says = append(says, "The gateway ignores "+strings.Join(ignored, ", ")+": docs/gateway.md has its own annotations.")
	}
	if len(says) > 0 {
		return Changes, strings.Join(says, " ")
	}
	return Works, ""
}
