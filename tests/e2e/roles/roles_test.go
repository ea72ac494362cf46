// Package roles tests servers for etcd only and for the control plane only, and an agent. Pods run
// on all of them, servers die and come back, and the shared join token is replaced while one server
// is down.
package roles

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const patience = 4 * time.Minute

// etcdOnly has the arguments of a server for etcd only.
var etcdOnly = []string{"--disable-apiserver", "--disable-controller-manager", "--disable-scheduler"}

// joining returns the arguments of a server that joins another's cluster.
func joining(server *harness.Server, more ...string) []string {
	return append([]string{"--server=https://" + server.Host.Address.String() + ":6443", "--token=" + server.Token()}, more...)
}

func TestSplitRoles(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	etcd := cluster.NewHost(t, network, "etcd-1").StartServer(t, append([]string{"--cluster-init"}, etcdOnly...)...)
	etcd.WaitLog("This server runs no API server, and its node waits for a server that does")
	plane := cluster.NewHost(t, network, "plane-1").StartServer(t, joining(etcd, "--disable-etcd")...)
	plane.WaitReady()
	c := cluster.Of(t, plane)
	c.WaitNode("etcd-1", corev1.ConditionTrue)
	// The agent joins through a server that has no API server itself.
	cluster.NewHost(t, network, "agent-1").StartAgent(t, etcd)
	c.WaitNode("agent-1", corev1.ConditionTrue)
	nodes := []string{"etcd-1", "plane-1", "agent-1"}

	var names []string
	for _, node := range nodes {
		names = append(names, c.RunWeb("web-"+node, node).Name)
	}
	c.ServeWeb()
	for i, name := range names {
		c.Answers(name, "http://web.default.svc.cluster.local/", names...) // this uses kubectl exec
		c.Eventually("logs from "+nodes[i], func() error {
			_, err := c.TryKubectl("", "logs", name)
			return err
		})
	}

	t.Run("roles", func(t *testing.T) {
		for node, want := range map[string]string{"etcd-1": "etcd", "plane-1": "control-plane", "agent-1": ""} {
			harness.Eventually(t, patience, node+" to have the role "+want, func() error {
				found, err := c.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
				if err != nil {
					return err
				}
				var roles []string
				for label := range found.Labels {
					if role, ok := strings.CutPrefix(label, "node-role.kubernetes.io/"); ok {
						roles = append(roles, role)
					}
				}
				if got := strings.Join(roles, " "); got != want {
					return fmt.Errorf("it has %q", got)
				}
				return nil
			})
		}
	})

	t.Run("ports", func(t *testing.T) {
		// tests/integration checks the other ports of a node.
		listens(t, etcd, []string{"*:6443", etcd.Host.Address.String() + ":2380", "127.0.0.1:2379"})
		own := plane.Host.Address.String()
		listens(t, plane, []string{"*:6443", "127.0.0.1:10257", "127.0.0.1:10259", own + ":10257", own + ":10259"})
	})

	t.Run("etcd dies and comes back", func(t *testing.T) {
		before := c.Containers()
		write(t, plane, "before")
		etcd.Kill9()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := c.Client.CoreV1().ConfigMaps("default").Create(ctx, configMap("lost"), metav1.CreateOptions{}); err == nil {
			t.Error("a write was taken without etcd")
		}
		etcd.Start()
		write(t, plane, "after")
		reads(t, plane, "before")
		c.WaitNode("etcd-1", corev1.ConditionTrue)
		c.WantSameContainers(before)
		c.In("web-etcd-1", "a pod of etcd-1 to be reached again", func(output string) bool { return strings.HasPrefix(output, "hostname=web-agent-1") },
			"/testserver", "fetch", "http://"+c.Pod("web-agent-1").Status.PodIP+":"+cluster.WebPort+"/")
	})

	second := cluster.NewHost(t, network, "plane-2").StartServer(t, joining(plane, "--disable-etcd")...)
	t.Run("a second control plane", func(t *testing.T) {
		second.WaitReady()
		reads(t, second, "after")
		for _, server := range []*harness.Server{plane, second} {
			for _, node := range append(nodes, "plane-2") {
				harness.Eventually(t, patience, server.Host.Name+" to reach the kubelet of "+node, func() error {
					_, err := server.Client().CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy/healthz").DoRaw(t.Context())
					return err
				})
			}
		}
		plane.Restart()
		write(t, second, "by-two")
		reads(t, plane, "by-two")
	})

	t.Run("a server without etcd takes no member in", func(t *testing.T) {
		wrong := network.NewHost(t, "wrong").StartServer(t, joining(plane, etcdOnly...)...)
		if code := wrong.WaitExit(patience); code != 1 || !strings.Contains(wrong.Log(), "this server runs no etcd") {
			t.Errorf("it ended with status %d:\n%s", code, wrong.LogTail())
		}
	})

	more := []*harness.Server{
		network.NewHost(t, "etcd-2").StartServer(t, joining(etcd, etcdOnly...)...),
		network.NewHost(t, "etcd-3").StartServer(t, joining(etcd, etcdOnly...)...),
	}
	scenario := t // servers that a step starts end with the step
	t.Run("three servers with etcd survive the loss of one", func(t *testing.T) {
		for _, server := range more {
			c.WaitNode(server.Host.Name, corev1.ConditionTrue)
		}
		for _, server := range []*harness.Server{plane, second} {
			server.WaitLog("The servers are at [")
		}
		etcd.Kill9()
		for i, server := range []*harness.Server{plane, second} {
			write(t, server, fmt.Sprint("without-one-", i))
		}
		// It accepts another server meanwhile. That one has no node and so waits for nothing.
		fourth := network.NewHost(scenario, "etcd-4").StartServer(scenario, append(joining(more[0], etcdOnly...), "--disable-agent")...)
		fourth.WaitLog("has caught up and has a vote now")
		more[0].WaitLog("A server joins while these members are down: etcd-1")
		fourth.WaitLog("to join a node, there: kedge agent")
		etcd.Start()
		c.WaitNode("etcd-1", corev1.ConditionTrue)
	})

	t.Run("token rotate", func(t *testing.T) { rotate(t, network, plane, []*harness.Server{etcd, second, more[0]}, more[1]) })
}

// rotate replaces the token on one server, while another is down.
func rotate(t *testing.T, network *harness.Network, by *harness.Server, others []*harness.Server, down *harness.Server) {
	old := by.Token()
	down.Kill9()
	output, err := by.Host.Kedge(t.Context(), "token", "rotate").Output()
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(output))
	if token == old || token != by.Token() {
		t.Fatalf("printed %s, and there is %s", token, by.Token())
	}
	check := func(server *harness.Server) {
		t.Helper()
		harness.Eventually(t, patience, server.Host.Name+" to know the new token", func() error {
			if code := knock(t, server, token); code != http.StatusOK {
				return fmt.Errorf("it answers %d", code)
			}
			return nil
		})
		if code := knock(t, server, old); code != http.StatusUnauthorized {
			t.Errorf("%s answers %d to the old token", server.Host.Name, code)
		}
	}
	for _, server := range append(others, by) {
		check(server)
	}
	// Its arguments still have the old token.
	down.Start()
	check(down)
	down.WaitLog("The token in this server's configuration is no longer the cluster's")

	late := network.NewHost(t, "late")
	refused := late.StartServer(t, "--disable-etcd", "--server=https://"+others[0].Host.Address.String()+":6443", "--token="+old)
	if code := refused.WaitExit(patience); code != 1 || !strings.Contains(refused.Log(), "the server does not accept the token") {
		t.Errorf("with the old token: status %d:\n%s", code, refused.LogTail())
	}
	late.StartServer(t, "--disable-etcd", "--server=https://"+down.Host.Address.String()+":6443", "--token="+token).WaitReady()
}

// knock sends a request to a server, from its host, for which a token is needed.
func knock(t *testing.T, server *harness.Server, token string) int {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return server.Host.DialContext(ctx, network, address)
		},
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:6443/v1-kedge/server/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, credentials, _ := strings.Cut(token, "::")
	user, secret, _ := strings.Cut(credentials, ":")
	request.SetBasicAuth(user, secret)
	response, err := client.Do(request)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// listens compares the TCP addresses on which a server listens, except those of every node, with want.
func listens(t *testing.T, server *harness.Server, want []string) {
	t.Helper()
	want = append(want, "*:10250", "127.0.0.1:10010", "127.0.0.1:10256", server.Host.Address.String()+":10053")
	output, err := server.Host.Command(t.Context(), "ss", "-Hlnt").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); len(fields) > 3 {
			got = append(got, fields[3])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s listens on\n  %s\nand should on\n  %s", server.Host.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// write creates a ConfigMap by a server's API.
func write(t *testing.T, server *harness.Server, name string) {
	t.Helper()
	harness.Eventually(t, patience, server.Host.Name+" to take a write", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := server.Client().CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // it was taken, and the answer was lost
		}
		return err
	})
}

// reads checks that a ConfigMap exists.
func reads(t *testing.T, server *harness.Server, name string) {
	t.Helper()
	harness.Eventually(t, patience, server.Host.Name+" to have what was written", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := server.Client().CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		return err
	})
}
