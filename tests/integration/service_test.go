package integration

import (
	"fmt"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestDeploymentBehindService connects to both replicas of a Deployment through their Service, by
// its DNS name, from another pod and from each replica.
func TestDeploymentBehindService(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.webServer(2, corev1.ServiceTypeClusterIP)
	s.sleeper("client")
	pods := s.pods("app=web", 2)

	for _, from := range []string{"client", pods[0].Name} {
		for _, name := range []string{"web", "web." + s.namespace, "web." + s.namespace + ".svc.cluster.local"} {
			answered := map[string]bool{}
			s.eventuallyIn(from, "both replicas to answer "+from+" at "+name, func(output string) bool {
				answered[strings.SplitN(output, "\n", 2)[0]] = true
				return answered["hostname="+pods[0].Name] && answered["hostname="+pods[1].Name]
			}, "/testserver", "fetch", "http://"+name+"/")
		}
	}
}

// TestNodePort connects to a NodePort from the node, from another host, and from a pod.
func TestNodePort(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.webServer(1, corev1.ServiceTypeNodePort)
	s.sleeper("client")
	pod := s.pods("app=web", 1)[0]
	service, err := s.client.CoreV1().Services(s.namespace).Get(s.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := s.server.Host
	address := net.JoinHostPort(node.Address.String(), fmt.Sprint(service.Spec.Ports[0].NodePort))

	for _, from := range []*harness.Host{node, shared.neighbour} {
		s.eventually(from.Name+" to reach "+address, func() error {
			answer, err := from.Get(address)
			if err == nil && !strings.Contains(answer, "hostname="+pod.Name) {
				err = fmt.Errorf("answer %q", answer)
			}
			return err
		})
	}
	s.eventuallyIn("client", "a pod to reach "+address, func(output string) bool {
		return strings.Contains(output, "hostname="+pod.Name)
	}, "/testserver", "fetch", "http://"+address+"/")
}
