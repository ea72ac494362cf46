// Package datastores tests servers with a database or an etcd of the user's own, which starts late,
// goes away and comes back.
package datastores

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/load"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const patience = cluster.Patience

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, store.NewPostgreSQL(t, network), "cannot be reached: check that it runs")
}

func TestMariaDB(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, store.NewMariaDB(t, network), "cannot be reached: check that it runs")
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, store.NewEtcd(t, network), "does not answer: check that it runs")
}

// serve tests one server with a store: its start, and faults of both.
func serve(t *testing.T, network *harness.Network, s *store.Store, late string) {
	host := cluster.NewHost(t, network, "server-1")
	host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.Endpoint)
	server := host.StartServer(t, s.Files(host)...)
	server.WaitLog(late)
	waiting, err := host.Kedge(t.Context(), "status").Output()
	if err == nil || !strings.Contains(string(waiting), late) {
		t.Errorf("the status while the store is away: %v\n%s", err, waiting)
	}
	s.Start()
	server.WaitReady()
	c := cluster.Of(t, server)
	c.RunWeb("web", "server-1")
	c.RunDeployment("sleepers")
	before := c.Containers()

	t.Log("the store goes away while clients write")
	writes := load.StartWrites(t, 0, c.Client)
	writes.More(100)
	s.Crash()
	writes.Refused()
	time.Sleep(time.Minute) // long enough for renewals of leases to be late
	// The kubelet and containerd keep working without it.
	if output, err := cluster.OnNode(host, "web", "true"); err != nil && strings.Contains(output, "not found") {
		t.Errorf("the runtime without the store: %v %s", err, output)
	}
	s.Start()
	writes.More(100)
	server.WaitReady()
	c.WantSameContainers(before)
	writes.Stop()
	writes.WantAll(c.Client)

	t.Log("kedge is killed while clients write, and then stopped")
	writes = load.StartWrites(t, 0, c.Client)
	writes.More(100)
	server.Kill9()
	server.Start()
	server.WaitReady()
	writes.Stop()
	server.Restart()
	c.Client = server.Client()
	writes.WantAll(c.Client)
	c.WantSameContainers(before)
	c.Scale("sleepers", 1)

	t.Log("the password is not visible anywhere")
	status, err := host.Kedge(t.Context(), "status", "--output=json").Output()
	if err != nil {
		t.Error(err)
	}
	for where, text := range map[string]string{"the log": server.Log(), "the status": string(status)} {
		for _, secret := range []string{store.Password, "s3cret%2Fword"} {
			if strings.Contains(text, secret) {
				t.Errorf("the password is in %s", where)
			}
		}
	}

	t.Log("without the endpoint the server does not found another cluster")
	server.Terminate()
	host.Setenv("KEDGE_DATASTORE_ENDPOINT", "")
	for i, args := range [][]string{nil, {"--cluster-init"}} {
		forgetful := host.StartServer(t, args...)
		if code := forgetful.WaitExit(patience); code != 1 || strings.Count(forgetful.Log(), "set datastore-endpoint again") != i+1 {
			t.Errorf("with %v it ended with status %d:\n%s", args, code, forgetful.LogTail())
		}
	}
}

// TestRefusals checks that faults which a user can correct end kedge at once, with an error that
// says how.
func TestRefusals(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := store.NewPostgreSQL(t, network)
	s.Start()
	host := network.NewHost(t, "server-1")
	files := s.Files(host)
	address := s.Host.Address.String()
	for _, test := range []struct {
		name, endpoint, want string
		args                 []string
	}{
		{"wrong password", "postgres://plain:wrong@" + address + "/cluster", "does not let kedge in: check user and password", nil},
		{"no certificate", "postgres://kedge:s3cret%2Fword@" + address + "/cluster", "does not let kedge in", nil},
		{"another authority", s.Endpoint + "?sslrootcert=/etc/kedge/store/kedge.crt", "cannot agree on TLS: check that datastore-cafile", files},
		{"file that is missing", s.Endpoint, "datastore-cafile: stat /none: no such file", []string{"--datastore-cafile=/none"}},
		{"t4", "t4://bucket/prefix", "datastore-endpoint: kedge has no T4 datastore. To lose nothing with the server's disk, remove the setting, and set backup to", nil},
		{"memory", "memory://", "datastore-endpoint: kedge has no datastore in memory. Remove the setting, and set data-dir to a folder of a tmpfs", nil},
		{"nats", "nats://host", "datastore-endpoint: kedge has no NATS datastore", nil},
		{"scheme", "oracle://kedge:wrong@" + address, "datastore-endpoint: unknown kind of datastore: begin with postgres://", nil},
		{"no endpoint", "postgres://kedge:wrong%zz@" + address, "datastore-endpoint: is not postgres://", nil},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := host.Kedge(ctx, append([]string{"server"}, test.args...)...)
		cmd.Env = append(cmd.Env, "KEDGE_DATASTORE_ENDPOINT="+test.endpoint)
		output, err := cmd.CombinedOutput()
		cancel()
		if err == nil || ctx.Err() == context.DeadlineExceeded || !strings.Contains(string(output), test.want) ||
			strings.Contains(string(output), "wrong@") || strings.Contains(string(output), "wrong%") {
			t.Errorf("%s: %v, want %q:\n%s", test.name, err, test.want, output)
		}
	}
}

// TestTwoServers has two servers with the same database and token, which form one cluster. The
// second server takes the cluster's secrets from the database and continues without the first.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := store.NewPostgreSQL(t, network)
	s.Start()
	first := s.StartServer(network, "server-1")
	first.WaitReady()
	c := cluster.Of(t, first)

	stranger := s.StartServer(network, "server-3")
	if code := stranger.WaitExit(patience); code == 0 {
		t.Error("a server without the token started")
	}
	stranger.WaitLog("there is a cluster at datastore-endpoint already: give this server the cluster's token")

	second := s.StartServer(network, "server-2", "--token="+first.Token())
	second.WaitReady()
	c.WaitNode("server-2", corev1.ConditionTrue)
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "server-2")
	c.ServeWeb()
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
	c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there")

	// A write that one server acknowledges must be visible on the other at once, also in watches.
	clients := []kubernetes.Interface{first.Client(), second.Client()}
	watch, err := clients[1].CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	for n := range 50 {
		name := fmt.Sprintf("shared-%d", n)
		_, err := clients[n%2].CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, err := clients[1-n%2].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list.Items, func(c corev1.ConfigMap) bool { return c.Name == name }) {
			t.Errorf("%s is not in the other server's list", name)
		}
	}
	seen := map[string]bool{}
	for event := range watch.ResultChan() {
		if item, ok := event.Object.(*corev1.ConfigMap); ok && strings.HasPrefix(item.Name, "shared-") {
			if seen[item.Name] {
				t.Errorf("a second event for %s", item.Name)
			}
			seen[item.Name] = true
		}
		if len(seen) == 50 {
			break
		}
	}

	writes := load.StartWrites(t, 0, clients[1])
	writes.More(20)
	first.Kill9()
	writes.More(100)
	first.Start()
	first.WaitReady()
	writes.Stop()
	writes.WantAll(first.Client())
	c.Client = first.Client()
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
}
