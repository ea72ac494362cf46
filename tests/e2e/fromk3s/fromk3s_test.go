// Package fromk3s gives a cluster of kedge what users of k3s have, as it is: a configuration, files in
// the manifests folder, claims, Services of type LoadBalancer, HelmCharts, and k3s's names in pods. What
// needs an ingress controller says so, and works as soon as the user installs one.
package fromk3s

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// The nodes, and the folder with the manifests of the user.
const (
	server    = "server-1"
	agent     = "agent-1"
	manifests = "/var/lib/kedge/server/manifests/"
)

// scenario is a cluster of a server and an agent. A host beside it is a client of the Services, and
// another one serves charts.
type scenario struct {
	*cluster.Cluster
	agent, client, charts *harness.Host
}

// in returns the scenario for a subtest.
func (s *scenario) in(t *testing.T) *scenario {
	sub := *s
	sub.Cluster = &cluster.Cluster{T: t, Server: s.Server, Client: s.Client}
	return &sub
}

// write writes a file into the manifests folder.
func (s *scenario) write(name, text string) {
	s.Helper()
	s.Server.Host.WriteFile(manifests+name, text)
}

// drop removes a file from the manifests folder.
func (s *scenario) drop(name string) {
	s.Helper()
	if err := os.Remove(s.Server.Host.Path(manifests + name)); err != nil {
		s.Fatal(err)
	}
}

// value waits until a ConfigMap has a value under the key a, or does not exist if want is empty.
func (s *scenario) value(namespace, name, want string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("ConfigMap %s/%s to have %q", namespace, name, want), func() error {
		found, err := s.Client.CoreV1().ConfigMaps(namespace).Get(s.Context(), name, metav1.GetOptions{})
		if want == "" && apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && (want == "" || found.Data["a"] != want) {
			err = fmt.Errorf("it is there with %v", found.Data)
		}
		return err
	})
}

// configMap returns a ConfigMap in YAML.
func configMap(name, value string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: %q}\n", name, value)
}

// sleeper starts a pod that only waits, with fields of its spec in YAML's flow style.
func (s *scenario) sleeper(name, fields string) string {
	s.Helper()
	s.Apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {%s, terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [sleep]}]}\n",
		name, fields, image.TestserverName))
	return s.Pod(name).Spec.NodeName
}

// newHost makes a host with the images of the pods.
func newHost(t *testing.T, network *harness.Network, name string) *harness.Host {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := image.Busybox(repository)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := network.NewHostOnDisk(t, name)
	cluster.Preload(t, host)
	host.Preload(busybox)
	return host
}

func TestWorkloads(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "e2fsprogs")
	network := harness.NewNetwork(t)

	t.Log("a server with the configuration and the manifests of k3s")
	host := newHost(t, network, server)
	host.WriteFile("/etc/kedge/config.yaml", `
write-kubeconfig-mode: "0644"
tls-san: [k3s.example.com]
disable: [traefik, unwanted]
node-label: [example.com/disk=ssd]
etcd-snapshot-retention: 3
`)
	host.WriteFile(manifests+"early.yaml", configMap("early", "before the first start"))
	host.WriteFile(manifests+"unwanted.yaml", configMap("unwanted", "of a disabled file"))
	host.WriteFile(manifests+"off.yaml", configMap("skipped", "of a skipped file"))
	host.WriteFile(manifests+"off.yaml.skip", "")
	running := host.StartServer(t)
	running.WaitReady()
	s := &scenario{
		Cluster: cluster.Of(t, running), client: network.NewHost(t, "client"), charts: network.NewHost(t, "charts"),
	}

	t.Log("an agent that joins by server/node-token, with the labels that k3s gave its nodes")
	token, err := os.ReadFile(host.Path("/var/lib/kedge/server/node-token"))
	if err != nil {
		t.Fatal(err)
	}
	s.agent = newHost(t, network, agent)
	s.agent.WriteFile("/etc/kedge/config.yaml", "node-label: [node.kubernetes.io/instance-type=k3s]\n")
	s.agent.StartAgent(t, running, "--token="+strings.TrimSpace(string(token))).WaitReady()

	// The order matters: charts install the kind that the manifests of ingresses wait for.
	t.Run("nodes", func(t *testing.T) { s.in(t).nodes() })
	t.Run("manifests", func(t *testing.T) { s.in(t).manifests() })
	t.Run("claims", func(t *testing.T) { s.in(t).claims() })
	t.Run("load balancers", func(t *testing.T) { s.in(t).balancers() })
	t.Run("charts", func(t *testing.T) { s.in(t).install() })
	t.Run("ingresses", func(t *testing.T) { s.in(t).ingresses() })
}

// nodes selects nodes by the labels that pods written for k3s have.
func (s *scenario) nodes() {
	for name, test := range map[string]struct{ label, node string }{
		"role":    {`node-role.kubernetes.io/control-plane: "true"`, server},
		"setting": {"example.com/disk: ssd", server},
		"type":    {"node.kubernetes.io/instance-type: k3s", agent},
		"name":    {"kubernetes.io/hostname: " + agent, agent},
	} {
		if node := s.sleeper(name, "nodeSelector: {"+test.label+"}"); node != test.node {
			s.Errorf("the pod with %s is on %s", test.label, node)
		}
		s.Kubectl("delete", "pod", name, "--now")
	}
	if node := s.sleeper("tolerant", `nodeSelector: {kubernetes.io/os: linux}, tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}, {key: CriticalAddonsOnly, operator: Exists}]`); node == "" {
		s.Error("the pod is on no node")
	}
	s.Kubectl("delete", "pod", "tolerant", "--now")
}

// manifests goes through what the folder of manifests does in k3s.
func (s *scenario) manifests() {
	s.value(cluster.Namespace, "early", "before the first start")

	s.Log("folders, all endings, several objects in a file")
	s.write("team/deep/one.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"+
		strings.ReplaceAll(configMap("one", "first"), "metadata: {", "metadata: {namespace: team, ")+"---\n# nothing\n"+configMap("two", "second"))
	s.write("team/three.yml", configMap("three", "third"))
	s.write("four.json", `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "four"}, "data": {"a": "fourth"}}`)
	s.value("team", "one", "first")
	s.value(cluster.Namespace, "two", "second")
	s.value(cluster.Namespace, "three", "third")
	s.value(cluster.Namespace, "four", "fourth")

	s.Log("neither the skipped file nor the disabled one was applied")
	s.value(cluster.Namespace, "skipped", "")
	s.value(cluster.Namespace, "unwanted", "")
	s.drop("off.yaml.skip")
	s.value(cluster.Namespace, "skipped", "of a skipped file")

	s.Log("differences from k3s: a removed file takes its objects along, and there are no Addons")
	s.drop("team/three.yml")
	s.value(cluster.Namespace, "three", "")
	if _, err := s.TryKubectl("", "get", "addons.k3s.cattle.io", "--all-namespaces"); err == nil {
		s.Error("there are Addons: correct docs/from-k3s.md")
	}
	files := s.Kubectl("get", "configmaps", "--namespace=kube-system", "--selector=applyset.kubernetes.io/id", "-o", "name")
	for _, name := range []string{"manifest-four.json", "manifest-off.yaml"} {
		if !strings.Contains(files, name) {
			s.Errorf("%s is not in\n%s", name, files)
		}
	}
}

// serveCharts serves handler on the host of charts, at the address that it returns.
func (s *scenario) serveCharts(handler http.Handler) string {
	listener := s.charts.Listen(":8080")
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	s.Cleanup(func() { server.Close() })
	return "http://" + s.charts.Address.String() + ":8080"
}

// has waits until the output of kubectl get has all of the words.
func (s *scenario) has(words []string, get ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%v to have %q", get, words), func() error {
		output, err := s.TryKubectl("", append([]string{"get"}, get...)...)
		for _, word := range words {
			if err == nil && !strings.Contains(output, word) {
				err = errors.New(output)
			}
		}
		return err
	})
}
