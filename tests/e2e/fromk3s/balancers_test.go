package fromk3s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// serve makes a Service of type LoadBalancer with labels, for the pods of RunWeb. more are lines of its
// spec.
func (s *scenario) serve(name string, port int, labels string, more ...string) {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, labels: {%s}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: %d, targetPort: %s}]
  %s
`, name, labels, port, cluster.WebPort, strings.Join(more, "\n  ")))
}

// at waits until a Service has the addresses of these hosts and no others.
func (s *scenario) at(name string, hosts ...*harness.Host) {
	s.Helper()
	var want []string
	for _, host := range hosts {
		want = append(want, host.Address.String())
	}
	slices.Sort(want)
	s.Eventually(fmt.Sprintf("Service %s to have the addresses %v", name, want), func() error {
		service, err := s.Client.CoreV1().Services(cluster.Namespace).Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			got = append(got, ingress.IP)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

// reaches waits until the client gets an answer of a pod at a host, or no connection if open is false.
func (s *scenario) reaches(host *harness.Host, port int, open bool) {
	s.Helper()
	target := net.JoinHostPort(host.Address.String(), fmt.Sprint(port))
	s.Eventually(fmt.Sprintf("the client to reach %s: %t", target, open), func() error {
		if open {
			answer, err := s.client.Get(target)
			if err == nil && !strings.Contains(answer, "hostname=web\n") {
				err = fmt.Errorf("the answer is %q", answer)
			}
			return err
		}
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		defer cancel()
		conn, err := s.client.DialContext(ctx, "tcp", target)
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("the client has a connection")
	})
}

// balancers uses what k3s's documentation says about its service load balancer.
func (s *scenario) balancers() {
	const enable, pool = "svccontroller.k3s.cattle.io/enablelb", "svccontroller.k3s.cattle.io/lbpool"
	nodes := []*harness.Host{s.Server.Host, s.agent}
	s.RunWeb("web", agent)

	s.Log("every node has the Service, and no pods run for it")
	s.serve("web", 80, "")
	s.at("web", nodes...)
	for _, node := range nodes {
		s.reaches(node, 80, true)
	}
	if pods := s.Kubectl("get", "pods", "--namespace=kube-system", "-o", "name"); pods != "" {
		s.Errorf("there are pods in kube-system: %s", pods)
	}

	s.Log("the labels of nodes, and their pools")
	s.Kubectl("label", "node", agent, enable+"=true")
	s.at("web", s.agent)
	s.Kubectl("label", "node", server, enable+"=true", pool+"=first")
	s.Kubectl("label", "node", agent, pool+"=second")
	s.serve("first", 81, pool+": first")
	s.at("first", s.Server.Host)
	s.reaches(s.Server.Host, 81, true)
	s.serve("nobody", 82, pool+": third")
	s.Told(cluster.Namespace, "nobody", "allowed by the labels of nodes and Service")
	s.at("nobody")
	s.Kubectl("label", "node", server, agent, enable+"-", pool+"-")
	s.at("web", nodes...)

	s.Log("who may use it")
	s.serve("few", 83, "", "loadBalancerSourceRanges: ["+s.client.Address.String()+"/32]")
	s.at("few", nodes...)
	s.reaches(s.agent, 83, true)
	s.Kubectl("patch", "service", "few", "--patch", `{"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}`)
	s.reaches(s.agent, 83, false)

	s.Log("a port that is taken is said at the Service")
	s.serve("late", 80, "")
	s.Told(cluster.Namespace, "late", "80/tcp", "default/web")
	s.at("late")
	s.Kubectl("delete", "service", "web", "first", "nobody", "few", "late")
}
