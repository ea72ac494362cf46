// Package metrics asks a cluster of a server and an agent what its nodes and pods use, with `kubectl
// top`, and compares that with the cgroups. HorizontalPodAutoscalers scale by it. The part can be
// disabled, and another program can answer in its place.
package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestMetrics(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	s := &scenario{c}
	t.Run("top", func(t *testing.T) { s.in(t).top() })
	t.Run("agrees with the cgroups", func(t *testing.T) { s.in(t).agrees() })
	t.Run("autoscaling", func(t *testing.T) { s.in(t).autoscaling() })
	t.Run("rights", func(t *testing.T) { s.in(t).rights() })
	t.Run("log", func(t *testing.T) { s.in(t).log() })
	t.Run("a node is down", func(t *testing.T) { s.in(t).nodeDown(agent) })
	t.Run("another program answers", func(t *testing.T) { s.in(t).replaced() })
	t.Run("disabled", func(t *testing.T) { s.in(t).disabled() })
}

type scenario struct{ *cluster.Cluster }

// in returns the scenario for a subtest.
func (s *scenario) in(t *testing.T) *scenario {
	return &scenario{&cluster.Cluster{T: t, Server: s.Server, Client: s.Client}}
}

// load runs a pod on a node that uses as many thousandths of a processor, and 200 MiB.
func (s *scenario) load(name, node string, millicores int) {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: load}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: %[3]q, args: [load, "%[4]d", "200"]}
  - {name: idle, image: %[3]q, args: [sleep]}
`, name, node, image.TestserverName, millicores))
	s.Pod(name)
}

// top wants `kubectl top` to show all nodes, pods and containers.
func (s *scenario) top() {
	s.load("load-server", "server-1", 60)
	s.load("load-agent", "agent-1", 40)
	for _, test := range []struct {
		command string
		want    []string // the first words of the lines
	}{
		{"top nodes --no-headers", []string{"agent-1", "server-1"}},
		{"top node agent-1 --no-headers", []string{"agent-1"}},
		{"top nodes --no-headers -l kubernetes.io/hostname=server-1", []string{"server-1"}},
		{"top pods --no-headers", []string{"load-agent", "load-server"}},
		{"top pods --no-headers --containers", []string{"load-agent idle", "load-agent main", "load-server idle", "load-server main"}},
		{"top pod load-agent --no-headers", []string{"load-agent"}},
		{"top pods --no-headers -l app=load --field-selector metadata.name=load-server", []string{"load-server"}},
		{"get podmetrics --no-headers", []string{"load-agent", "load-server"}},
		{"get nodemetrics --no-headers", []string{"agent-1", "server-1"}},
	} {
		s.Eventually(test.command, func() error {
			output, err := s.TryKubectl("", strings.Fields(test.command)...)
			if err != nil {
				return err
			}
			var got []string
			for line := range strings.Lines(output) {
				got = append(got, strings.Join(strings.Fields(line)[:len(strings.Fields(test.want[0]))], " "))
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				return fmt.Errorf("it prints %s", output)
			}
			return nil
		})
		s.Logf("kubectl %s\n%s", test.command, s.Kubectl(strings.Fields(test.command)...))
	}
	if output := s.Kubectl("get", "apiservice", "v1beta1.metrics.k8s.io", "--no-headers"); !strings.Contains(output, "Local") || !strings.Contains(output, "True") {
		s.Errorf("the APIService is %s", output)
	}
}

// ofCgroup asks a container itself what its cgroup has used.
func (s *scenario) ofCgroup(pod string, parameters map[string]string) (used struct{ Processor, Memory uint64 }, err error) {
	text, err := s.Client.CoreV1().Pods(cluster.Namespace).ProxyGet("http", pod, cluster.WebPort, "/", parameters).DoRaw(s.Context())
	if err == nil {
		err = json.Unmarshal(text, &used)
	}
	return used, err
}

// metrics returns what the API says of a pod.
func (s *scenario) metrics(pod string) (m metricsv1beta1.PodMetrics, err error) {
	text, err := s.TryKubectl("", "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/"+cluster.Namespace+"/pods/"+pod)
	if err == nil {
		err = json.Unmarshal([]byte(text), &m)
	}
	return m, err
}

// agrees compares the API with the cgroup: over some time, because a kubelet measures every 10 to 30
// seconds.
func (s *scenario) agrees() {
	for _, pod := range []string{"load-server", "load-agent"} {
		s.Eventually("what "+pod+" uses to agree with its cgroup", func() error {
			first, err := s.ofCgroup(pod, nil)
			if err != nil {
				return err
			}
			began := time.Now()
			time.Sleep(20 * time.Second)
			second, err := s.ofCgroup(pod, nil)
			if err != nil {
				return err
			}
			rate := float64(second.Processor-first.Processor) / time.Since(began).Seconds() / 1e9
			m, err := s.metrics(pod)
			if err != nil {
				return err
			}
			main := slices.IndexFunc(m.Containers, func(c metricsv1beta1.ContainerMetrics) bool { return c.Name == "main" })
			if main < 0 {
				return fmt.Errorf("it has %v", m.Containers)
			}
			usage := m.Containers[main].Usage
			processor, memory := usage.Cpu().AsApproximateFloat64()/rate-1, usage.Memory().AsApproximateFloat64()/float64(second.Memory)-1
			s.Logf("%s: processor %s, by the cgroup %.4f (%+.1f %%); memory %s, by the cgroup %d (%+.1f %%); over %v", pod,
				usage.Cpu(), rate, 100*processor, usage.Memory(), second.Memory, 100*memory, m.Window.Duration)
			if math.Abs(processor) > 0.1 || math.Abs(memory) > 0.1 {
				return errors.New("they differ by more than 10 %")
			}
			return nil
		})
	}
}

// autoscaling lets a HorizontalPodAutoscaler with metrics of three kinds scale a Deployment up and down.
func (s *scenario) autoscaling() {
	s.Apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: ` + image.TestserverName + `
        args: [load, "100", "20"]
        resources: {requests: {cpu: 50m, memory: 100Mi}}
      - name: idle
        image: ` + image.TestserverName + `
        args: [sleep]
        resources: {requests: {cpu: 10m, memory: 20Mi}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: busy}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: busy}
  minReplicas: 1
  maxReplicas: 3
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0}
    scaleDown: {stabilizationWindowSeconds: 0}
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 90Mi}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: main, target: {type: Utilization, averageUtilization: 60}}}
`)
	s.replicas(3)
	s.Eventually("the load to end", func() error {
		pods, err := s.Client.CoreV1().Pods(cluster.Namespace).List(s.Context(), metav1.ListOptions{LabelSelector: "app=busy"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if _, err := s.ofCgroup(pod.Name, map[string]string{"millicores": "1"}); err != nil {
				return err
			}
		}
		if len(pods.Items) != 3 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return nil
	})
	s.replicas(1)
	s.Kubectl("delete", "hpa,deployment", "busy")
}

// replicas waits until the autoscaler has scaled the Deployment, with figures of all its metrics.
func (s *scenario) replicas(want int32) {
	s.Helper()
	began := time.Now()
	s.Eventually(fmt.Sprintf("%d replicas", want), func() error {
		hpa, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers(cluster.Namespace).Get(s.Context(), "busy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if hpa.Status.CurrentReplicas != want || hpa.Status.DesiredReplicas != want {
			return fmt.Errorf("its status is %+v", hpa.Status)
		}
		known := 0
		for _, metric := range hpa.Status.CurrentMetrics {
			switch {
			case metric.Type == autoscalingv2.ResourceMetricSourceType && metric.Resource.Current.AverageValue != nil,
				metric.Type == autoscalingv2.ContainerResourceMetricSourceType && metric.ContainerResource.Current.AverageValue != nil:
				known++
			}
		}
		if known != 3 {
			return fmt.Errorf("its metrics are %+v", hpa.Status.CurrentMetrics)
		}
		return nil
	})
	s.Logf("%d replicas after %v\n%s", want, time.Since(began).Round(time.Second), s.Kubectl("get", "hpa"))
}

// rights wants only those who may view a namespace to see what its pods use, and kedge's user to have no
// other right.
func (s *scenario) rights() {
	s.Kubectl("create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer")
	for _, test := range []struct{ user, what, want string }{
		{"viewer", "list pods.metrics.k8s.io", "yes"},
		{"viewer", "list nodes.metrics.k8s.io --all-namespaces", "no"},
		{"viewer", "list pods.metrics.k8s.io -n kube-system", "no"},
		{"nobody", "list pods.metrics.k8s.io", "no"},
		{"system:kedge:metrics-server", "get nodes --subresource=stats", "yes"},
		{"system:kedge:metrics-server", "get nodes --subresource=proxy", "no"},
		{"system:kedge:metrics-server", "get nodes --subresource=metrics", "no"},
		{"system:kedge:metrics-server", "list pods", "no"},
	} {
		// kubectl ends with status 1 at a no.
		if output, _ := s.TryKubectl("", append(append([]string{"auth", "can-i"}, strings.Fields(test.what)...), "--as="+test.user)...); !strings.HasPrefix(output, test.want) {
			s.Errorf("may %s %s: %q, want %s", test.user, test.what, output, test.want)
		}
	}
}

// log wants no errors of the parts that serve and use metrics, and nothing about metrics that is said again
// and again.
func (s *scenario) log() {
	said := map[string]int{}
	for line := range strings.Lines(s.Server.Log()) {
		lower := strings.ToLower(line)
		ours := slices.ContainsFunc([]string{"apiserver", "controllers", "metrics", "addons"}, func(part string) bool {
			return strings.Contains(line, "component="+part)
		})
		if ours && strings.Contains(line, "level=error") {
			s.Errorf("the log has %s", line)
		}
		if strings.Contains(line, "level=warning") && (strings.Contains(lower, "metrics") || strings.Contains(lower, "autoscal")) {
			_, message, _ := strings.Cut(line, "msg=")
			said[message]++
		}
	}
	for message, times := range said {
		s.Logf("%d times: %s", times, message)
		if times > 2 {
			s.Errorf("the log has %d times %s", times, message)
		}
	}
}

// nodeDown wants the other node's figures while a node is down.
func (s *scenario) nodeDown(agent *harness.Agent) {
	only := func(want ...string) {
		s.Helper()
		s.Eventually(fmt.Sprintf("figures of %q", want), func() error {
			output, err := s.TryKubectl("", "get", "nodemetrics", "-o", "jsonpath={.items[*].metadata.name}")
			if err == nil && output != strings.Join(want, " ") {
				err = fmt.Errorf("there are figures of %s", output)
			}
			return err
		})
	}
	agent.Host.CutLink()
	only("server-1")
	if output := s.Kubectl("top", "pods", "--no-headers"); !strings.HasPrefix(output, "load-server ") || strings.Contains(output, "load-agent") {
		s.Errorf("of pods: %s", output)
	}
	s.WaitNode("agent-1", corev1.ConditionUnknown)
	only("server-1")
	agent.Host.HealLink()
	s.WaitNode("agent-1", corev1.ConditionTrue)
	only("agent-1", "server-1")
}

// replaced lets an APIService point to a Service of the user.
func (s *scenario) replaced() {
	const name = "v1beta1.metrics.k8s.io"
	theirs := `{"spec": {"service": {"namespace": "kube-system", "name": "theirs"}, "insecureSkipTLSVerify": true}}`
	s.Kubectl("patch", "apiservice", name, "--type=merge", "--patch="+theirs)
	unavailable := func() {
		s.Helper()
		s.Eventually("kedge not to answer", func() error {
			output, err := s.TryKubectl("", "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")
			if err == nil {
				return fmt.Errorf("it is %s", output)
			}
			return nil
		})
	}
	unavailable()
	s.Server.Restart()
	s.Server.WaitLog("The Service kube-system/theirs answers the API group " + name)
	unavailable()
	if output := s.Kubectl("get", "apiservice", name, "-o", "jsonpath={.spec.service.name}"); output != "theirs" {
		s.Errorf("its Service is %q", output)
	}

	// Nor does kedge remove what is in use.
	s.Server.Host.WriteFile("/etc/kedge/config.yaml", "disable: [metrics-server]\n")
	s.Server.Restart()
	s.Kubectl("get", "clusterrole", "system:aggregated-metrics-reader")
	s.Kubectl("delete", "apiservice", name)
	s.Server.Host.WriteFile("/etc/kedge/config.yaml", "")
	s.Server.Restart()
	s.works()
}

// works waits until `kubectl top` shows all nodes and pods.
func (s *scenario) works() {
	s.Helper()
	s.Eventually("metrics of all nodes and pods", func() error {
		nodes, err := s.TryKubectl("", "top", "nodes", "--no-headers")
		pods, err2 := s.TryKubectl("", "top", "pods", "--no-headers")
		if err = errors.Join(err, err2); err == nil && (strings.Count(nodes, "\n") != 1 || strings.Count(pods, "\n") != 1) {
			err = fmt.Errorf("they are\n%s\n%s", nodes, pods)
		}
		return err
	})
}

// disabled turns the part off and on again.
func (s *scenario) disabled() {
	objects := []string{"apiservice/v1beta1.metrics.k8s.io", "clusterrole/system:aggregated-metrics-reader",
		"clusterrole/system:kedge:metrics-server", "clusterrolebinding/system:kedge:metrics-server"}
	s.Kubectl(append([]string{"get"}, objects...)...)
	s.Server.Host.WriteFile("/etc/kedge/config.yaml", "disable: [metrics-server]\n")
	s.Server.Restart()
	s.Eventually("its objects to be removed", func() error {
		output, err := s.TryKubectl("", append([]string{"get", "--ignore-not-found", "-o", "name"}, objects...)...)
		if err == nil && output != "" {
			err = fmt.Errorf("there are %s", output)
		}
		return err
	})
	for _, what := range []string{"nodes", "pods"} {
		if output, err := s.TryKubectl("", "top", what); err == nil || !strings.Contains(err.Error()+output, "Metrics API not available") {
			s.Errorf("kubectl top %s: %s, %v", what, output, err)
		}
	}
	if output := s.Kubectl("api-versions"); strings.Contains(output, "metrics.k8s.io") {
		s.Errorf("the API has the versions %s", output)
	}
	s.Server.Host.WriteFile("/etc/kedge/config.yaml", "")
	s.Server.Restart()
	s.works()
	s.Kubectl(append([]string{"get"}, objects...)...)
}
