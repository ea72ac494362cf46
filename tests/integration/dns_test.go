package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestDNSRecords asks, from a pod, for each kind of record of the specification
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md).
func TestDNSRecords(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.webServer(2, corev1.ServiceTypeClusterIP)
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: headless}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: web.NAMESPACE.svc.cluster.local}
`)
	s.sleeper("client")
	pods := s.pods("app=web", 2)
	service, err := s.client.CoreV1().Services(s.namespace).Get(s.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var (
		address = service.Spec.ClusterIP
		suffix  = "." + s.namespace + ".svc.cluster.local"
		podIPs  = []string{pods[0].Status.PodIP, pods[1].Status.PodIP}
		dashed  = strings.ReplaceAll(podIPs[0], ".", "-")
	)
	for _, record := range []struct {
		kind, name string
		want       []string
	}{
		{"host", "web", []string{address}},
		{"host", "web" + suffix + ".", []string{address}},
		{"ptr", address, []string{"web" + suffix + "."}},
		{"srv", "_http._tcp.web" + suffix, []string{"web" + suffix + ".:80"}},
		{"host", "headless", podIPs},
		{"srv", "_http._tcp.headless" + suffix, []string{dashedName(podIPs[0], suffix), dashedName(podIPs[1], suffix)}},
		// A pod has a name under each of its Services.
		{"ptr", podIPs[0], []string{dashed + ".headless" + suffix + ".", dashed + ".web" + suffix + "."}},
		{"host", dashed + "." + s.namespace + ".pod.cluster.local", podIPs[:1]},
		{"host", "elsewhere", []string{address}},
		{"cname", "elsewhere", []string{"web" + suffix + "."}},
		{"host", "kubernetes.default", []string{"10.43.0.1"}},
		{"host", "kube-dns.kube-system", []string{"10.43.0.10"}},
	} {
		want := slices.Sorted(slices.Values(record.want))
		s.eventuallyIn("client", record.kind+" record of "+record.name, func(output string) bool {
			got := strings.Fields(output)
			slices.Sort(got)
			return slices.Equal(got, want)
		}, "/testserver", "lookup", record.kind, record.name)
	}
	if output, err := s.in("client", "/testserver", "lookup", "host", "nobody"+suffix); err == nil {
		t.Errorf("a name that is not there has the address %s", output)
	}
}

func dashedName(ip, suffix string) string {
	return strings.ReplaceAll(ip, ".", "-") + ".headless" + suffix + ".:8080"
}

// TestDNSIsForThisNodeOnly checks that the cluster's DNS does not answer another host of the network.
func TestDNSIsForThisNodeOnly(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	node := s.server.Host
	address := net.JoinHostPort(node.Address.String(), "10053")
	ask := func(from *harness.Host, network string) error {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.DialContext(ctx, network, address)
		}}
		ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		return err
	}
	for _, network := range []string{"udp", "tcp"} {
		s.eventually("the node itself to be answered by "+network, func() error { return ask(node, network) })
		if err := ask(shared.neighbour, network); err == nil {
			t.Errorf("another host is answered by %s", network)
		}
	}
}

// TestDNSForwards resolves a name that only the host's own nameserver knows, and a name that nobody
// knows.
func TestDNSForwards(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.sleeper("client")
	s.eventuallyIn("client", "a name of the host's nameserver", func(output string) bool { return output == outsideAddress },
		"/testserver", "lookup", "host", outsideName)
	output, err := s.in("client", "/testserver", "lookup", "host", "nobody.example.")
	if err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("an unknown name gives %q, %v", output, err)
	}
}

// TestDNSCustom adds a user's parts to the Corefile. A good part must work. A bad part must be
// refused with an Event, while the good one stays in use.
func TestDNSCustom(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.sleeper("client")
	custom := func(text string) {
		s.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns-custom, namespace: kube-system}
data:
` + text)
	}
	defer s.kubectl("delete", "configmap", "-n", "kube-system", "coredns-custom")
	const good = `
  boat.server: |
    boat.test:53 {
      hosts {
        192.0.2.7 harbour.boat.test
      }
    }
`
	custom(good)
	harbour := func(output string) bool { return output == "192.0.2.7" }
	s.eventuallyIn("client", "the name of the good part", harbour, "/testserver", "lookup", "host", "harbour.boat.test.")

	custom(good + `
  bad.override: |
    no-such-directive here
`)
	s.eventually("an event that names the bad part", func() error {
		events := s.kubectl("get", "events", "-n", "kube-system", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.type} {.message}{\"\\n\"}{end}")
		for line := range strings.Lines(events) {
			if strings.HasPrefix(line, "coredns-custom Warning") && strings.Contains(line, "no-such-directive") {
				return nil
			}
		}
		return fmt.Errorf("events are %s", events)
	})
	for _, name := range []string{"harbour.boat.test.", "kubernetes.default.svc.cluster.local."} {
		if _, err := s.in("client", "/testserver", "lookup", "host", name); err != nil {
			t.Errorf("beside a bad part: %v", err)
		}
	}
}
