package why

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// written are the Events of last resort about the objects of lastresort.yaml: the object, the reason, and the beginning of the message.
var written = []string{
	"Gateway front GatewayClassMissing There is no GatewayClass kegde, so no controller serves the Gateway. What to do: correct spec.gatewayClassName.",
	"HTTPRoute lost RouteGatewayMissing The route belongs to the Gateway nobody, and namespace shop has none of that name. What to do: create the Gateway",
	"Ingress web IngressClassMissing There is no IngressClass ngnix, so no controller serves the Ingress. What to do: correct spec.ingressClassName",
	"Service metal LoadBalancerClass The Service waits for the load balancer of its loadBalancerClass example.com/metal. What to do: see whether",
	"Service named TargetPortName The Service sends to the TCP port named http of its pods, and their ports are 8080. What to do: give a port",
	"Service web SelectorMatchesNothing The Service selects pods with app=web, and no pod has these labels. The pod db comes nearest: instead of app=web it has app=db. What to do: give the selector",
}

// TestLastResort has objects that do not work, and nothing in Kubernetes says why. A user who may only read the namespace finds the causes in Events,
// and nothing of other namespaces, classes and nodes.
func TestLastResort(t *testing.T) {
	harness.Require(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Kubectl("create", "namespace", "shop")
	c.Kubectl("--namespace=shop", "create", "rolebinding", "reader", "--clusterrole=view", "--user=reader")
	for file, namespace := range map[string]string{"hush.yaml": "hush", "lastresort.yaml": "shop"} {
		objects, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c.Eventually("the objects of "+file, func() error {
			_, err := c.TryKubectl(string(objects), "apply", "--namespace="+namespace, "-f", "-")
			return err
		})
	}
	server.Restart() // the first two looks come soon after the start
	asReader := func(words ...string) string {
		return c.Kubectl(append([]string{"--as=reader", "--namespace=shop"}, words...)...)
	}
	var found []string
	c.Eventually("Events of last resort", func() error {
		found = nil
		for line := range strings.Lines(asReader("get", "events", "--field-selector=source=kedge-why", "--no-headers", "-o",
			`jsonpath={range .items[*]}{.involvedObject.kind} {.involvedObject.name} {.reason} {.message}{"\n"}{end}`)) {
			found = append(found, strings.TrimSpace(line))
		}
		slices.Sort(found)
		if len(found) < len(written) {
			return fmt.Errorf("there are %q", found)
		}
		return nil
	})
	if !slices.EqualFunc(found, written, strings.HasPrefix) {
		t.Errorf("the Events are\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(written, "\n"))
	}
	if output := c.Kubectl("--namespace=hush", "get", "events", "--field-selector=source=kedge-why"); !strings.Contains(output, "SelectorMatchesNothing") {
		t.Errorf("the other namespace has no Event: %s", output)
	}
	all := asReader("get", "events", "-o", "jsonpath={.items[?(@.source.component==\"kedge-why\")].message}")
	if leak := regexp.MustCompile(`hush|server-1|free`).FindString(all); leak != "" {
		t.Errorf("the reader learns %q: %s", leak, all)
	}
	for object, says := range map[string]string{"service/web": "SelectorMatchesNothing", "ingress/web": "IngressClassMissing", "pvc/data": `storageclass.storage.k8s.io "fast" not found`} {
		if output := asReader("describe", object); !strings.Contains(output, says) {
			t.Errorf("kubectl describe %s does not say %s: %s", object, says, output)
		}
	}
	if output, err := host.Kedge(t.Context(), "recorder", "--output=json").CombinedOutput(); err != nil || !strings.Contains(string(output), "SelectorMatchesNothing") {
		t.Errorf("the recorder does not have it: %v", err)
	}
	for _, right := range []string{"get secrets", "list nodes", "get nodes", "list ingressclasses", "list storageclasses", "get pods --subresource=log", "delete events"} {
		if output, _ := c.TryKubectl("", append([]string{"auth", "can-i", "--as=system:kedge:last-resort", "--namespace=shop"}, strings.Fields(right)...)...); strings.TrimSpace(output) != "no" {
			t.Errorf("the writer may %s: %s", right, output)
		}
	}
}
