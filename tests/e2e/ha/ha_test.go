// Package ha tests three servers with embedded etcd: they join, are restarted and replaced, die,
// are cut off, have stalled disks, and lose their quorum.
package ha

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	patience = 4 * time.Minute
	etcdDir  = "/var/lib/kedge/server/db/etcd"
)

// found starts the first server of a cluster.
func found(t *testing.T, network *harness.Network) *harness.Server {
	t.Helper()
	return cluster.Gather(t, network.NewHost(t, "server-1"))[0]
}

// three makes the hosts of three servers that can run pods.
func three(t *testing.T, network *harness.Network) []*harness.Host {
	t.Helper()
	var hosts []*harness.Host
	for i := range 3 {
		hosts = append(hosts, cluster.NewHost(t, network, fmt.Sprint("server-", i+1)))
	}
	return hosts
}

// without returns the other servers.
func without(one *harness.Server, servers []*harness.Server) []*harness.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(server *harness.Server) bool { return server == one })
}

// write creates a ConfigMap by a server's API, and reads it.
func write(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	harness.Eventually(t, patience, "the API to take a write", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// reads checks that a ConfigMap exists.
func reads(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	harness.Eventually(t, patience, "the API to have what was written", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{})
		return err
	})
}

// nodeReady waits until the API of a server says that a node is, or is not, Ready.
func nodeReady(t *testing.T, client kubernetes.Interface, node string) {
	t.Helper()
	harness.Eventually(t, patience, "node "+node+" to be Ready", func() error {
		found, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range found.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// ends checks that a server ends by itself and has logged text.
func ends(t *testing.T, server *harness.Server, text string) {
	t.Helper()
	if code := server.WaitExit(patience); code != 1 {
		t.Errorf("it ended with status %d, want 1", code)
	}
	if !strings.Contains(server.Log(), text) {
		t.Errorf("it did not say %q:\n%s", text, server.LogTail())
	}
}

func TestThreeServers(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := cluster.Gather(t, three(t, network)...)
	one, two, three := servers[0], servers[1], servers[2]
	member.WaitVoters(t, three, "server-1", "server-2", "server-3")

	t.Run("each lists all", func(t *testing.T) {
		for _, server := range servers {
			harness.Eventually(t, patience, "three endpoints of the API", func() error {
				slice, err := server.Client().DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
				if err == nil && len(slice.Endpoints) != len(servers) {
					err = fmt.Errorf("it has %d", len(slice.Endpoints))
				}
				return err
			})
		}
	})

	t.Run("each reaches every kubelet", func(t *testing.T) {
		agent := network.NewHost(t, "agent-1").StartAgent(t, two)
		agent.WaitReady()
		for _, server := range servers {
			for _, node := range []string{"server-1", "server-2", "server-3", "agent-1"} {
				harness.Eventually(t, patience, server.Host.Name+" to reach the kubelet of "+node, func() error {
					_, err := server.Client().CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy/healthz").DoRaw(t.Context())
					return err
				})
			}
		}
		agent.Terminate()
	})

	t.Run("one dies and comes back", func(t *testing.T) {
		write(t, one.Client(), "before")
		one.Kill9()
		reads(t, three.Client(), "before")
		write(t, two.Client(), "meanwhile")
		reads(t, three.Client(), "meanwhile")
		one.Start()
		one.WaitReady()
		reads(t, one.Client(), "meanwhile")
		member.WaitVoters(t, one, "server-1", "server-2", "server-3")
	})

	t.Run("the one that leads dies, and storage goes on", func(t *testing.T) {
		binds(t, one.Client(), "before")
		leader := holder(t, servers...)
		leader.Kill9()
		binds(t, without(leader, servers)[0].Client(), "after")
		leader.Start()
		leader.WaitReady()
	})

	t.Run("a node is deleted and its member goes", func(t *testing.T) {
		three.Kill9()
		if err := one.Client().CoreV1().Nodes().Delete(t.Context(), "server-3", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		member.WaitVoters(t, one, "server-1", "server-2")
		// The server finds this out when it starts the next time.
		three.Start()
		ends(t, three, "no longer a member of the cluster's etcd")
		if err := os.Rename(three.Host.Path(etcdDir), three.Host.Path(etcdDir+".old")); err != nil {
			t.Fatal(err)
		}
		// Without --server it would found a cluster of its own with the same token.
		ends(t, three.Host.StartServer(t), "belongs to a cluster of several servers")
		three.Start()
		three.WaitReady()
		member.WaitVoters(t, one, "server-1", "server-2", "server-3")
		reads(t, three.Client(), "meanwhile")
	})

	t.Run("two of three are lost", func(t *testing.T) {
		write(t, one.Client(), "last")
		two.Kill9()
		three.Kill9()
		began := time.Now()
		one.Terminate()
		t.Logf("without a quorum it stopped in %s", time.Since(began).Round(time.Millisecond))
		one.Start()
		one.WaitLog("Waiting for etcd's members: of 3 members with a vote, 1 answer and 2 are needed. No answer from server-2, server-3")
		one.Terminate()
		reset := one.Host.StartServer(t, "--cluster-reset")
		if code := reset.WaitExit(patience); code != 0 {
			t.Fatalf("it ended with status %d:\n%s", code, reset.LogTail())
		}
		if text := "On each other server: stop kedge, move"; !strings.Contains(reset.Log(), text) {
			t.Errorf("it did not say %q:\n%s", text, reset.LogTail())
		}
		one.Start()
		one.WaitReady()
		member.WaitVoters(t, one, "server-1")
		reads(t, one.Client(), "last")
		// The others must not form a cluster without it.
		two.Start()
		ends(t, two, "no longer a member of the cluster's etcd")
		if err := os.Rename(two.Host.Path(etcdDir), two.Host.Path(etcdDir+".old")); err != nil {
			t.Fatal(err)
		}
		two.Start()
		two.WaitReady()
		member.WaitVoters(t, two, "server-1", "server-2")
		reads(t, two.Client(), "last")
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	one := found(t, network)
	args := cluster.Joining(one)
	token := one.Token()
	_, secret, _ := strings.Cut(token, "::server:")
	other := network.NewHost(t, "other")

	for name, fault := range map[string]struct {
		args []string
		want string
	}{
		"no token":        {args[:1], "a server needs the cluster's token"},
		"wrong token":     {[]string{args[0], args[1] + "0"}, "the server does not accept the token"},
		"short token":     {[]string{args[0], "--token=" + secret}, "give the whole token, K10...::..., as it is in /var/lib/kedge/server/token"},
		"agent token":     {[]string{args[0], "--token=" + strings.Replace(token, "::server:", "::node:", 1)}, "this token is for agents"},
		"other authority": {[]string{args[0], strings.Replace(args[1], token[3:7], "0000", 1)}, "is not of the token's cluster"},
		"other settings":  {append([]string{"--cluster-cidr=10.52.0.0/16", "--cluster-domain=example.org"}, args...), "cluster-cidr is 10.52.0.0/16 here and 10.42.0.0/16 there"},
		"both":            {append([]string{"--cluster-init"}, args...), "Remove one of them"},
		"taken":           {append([]string{"--node-name=server-1"}, args...), "etcd already has a member of node server-1"},
	} {
		t.Run(name, func(t *testing.T) {
			ends(t, other.StartServer(t, fault.args...), fault.want)
			if err := os.RemoveAll(other.Path("/var/lib/kedge/server")); err != nil {
				t.Fatal(err)
			}
		})
	}

	t.Run("two clusters", func(t *testing.T) {
		second := network.NewHost(t, "second").StartServer(t, "--cluster-init")
		second.WaitReady()
		second.Terminate()
		ends(t, second.Host.StartServer(t, args...), "this server has a cluster of its own")
	})

	t.Run("from SQLite", func(t *testing.T) {
		single := network.NewHost(t, "single").StartServer(t)
		single.WaitReady()
		ends(t, other.StartServer(t, cluster.Joining(single)...), "the server keeps its state in SQLite")
		single.Terminate()
		ends(t, single.Host.StartServer(t, args...), "this server has a cluster of its own")
	})

	t.Run("drifted secrets, with a short token", func(t *testing.T) {
		if err := os.RemoveAll(other.Path("/var/lib/kedge/server")); err != nil {
			t.Fatal(err)
		}
		joined := other.StartServer(t, args[0], "--token="+secret, "--insecure-short-token")
		joined.WaitReady()
		if joined.Token() != token {
			t.Errorf("the token is %s, want %s", joined.Token(), token)
		}
		joined.Terminate()
		key := other.Path("/var/lib/kedge/server/tls/service.key")
		if err := os.WriteFile(key, []byte("another"), 0o600); err != nil {
			t.Fatal(err)
		}
		joined.Start()
		ends(t, joined, "differ from those of the server at")
		if err := os.Remove(key); err != nil {
			t.Fatal(err)
		}
		joined.Start()
		joined.WaitReady()
	})
}

// TestKilledWhileJoining kills a server at several points while it joins, and starts it again.
func TestKilledWhileJoining(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	one := found(t, network)
	two := network.NewHost(t, "server-2").StartServer(t, cluster.Joining(one)...)
	for i := range 12 {
		time.Sleep(time.Duration(i) * 60 * time.Millisecond)
		two.Kill9()
		two.Start()
	}
	two.WaitReady()
	member.WaitVoters(t, two, "server-1", "server-2")
	members, err := member.List(one.Host)
	if err != nil || len(members) != 2 {
		t.Errorf("the members are %v, %v", members, err)
	}
}
