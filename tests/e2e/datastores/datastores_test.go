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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const patience = cluster.Patience

func TestPostgreSQL(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, newPostgres(t, network), "cannot be reached: check that it runs")
}

func TestMariaDB(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, newMariaDB(t, network), "cannot be reached: check that it runs")
}

func TestEtcd(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	serve(t, network, newEtcd(t, network), "does not answer: check that it runs")
}

// serve tests one server with a store: its start, and faults of both.
func serve(t *testing.T, network *harness.Network, s *store, late string) {
	host := cluster.NewHost(t, network, "server-1")
	host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.endpoint)
	server := host.StartServer(t, s.files(host)...)
	server.WaitLog(late)
	waiting, err := host.Kedge(t.Context(), "status").Output()
	if err == nil || !strings.Contains(string(waiting), late) {
		t.Errorf("the status while the store is away: %v\n%s", err, waiting)
	}
	s.start()
	server.WaitReady()
	c := cluster.Of(t, server)
	c.RunWeb("web", "server-1")
	c.RunDeployment("sleepers")
	before := c.Containers()

	t.Log("the store goes away while clients write")
	writes := startWrites(t, c.Client)
	writes.more(100)
	s.crash()
	writes.refused()
	time.Sleep(time.Minute) // long enough for renewals of leases to be late
	// The kubelet and containerd keep working without it.
	if output, err := cluster.OnNode(host, "web", "true"); err != nil && strings.Contains(output, "not found") {
		t.Errorf("the runtime without the store: %v %s", err, output)
	}
	s.start()
	writes.more(100)
	server.WaitReady()
	c.WantSameContainers(before)
	writes.stop()
	writes.wantAll(c.Client)

	t.Log("kedge is killed while clients write, and then stopped")
	writes = startWrites(t, c.Client)
	writes.more(100)
	server.Kill9()
	server.Start()
	server.WaitReady()
	writes.stop()
	server.Restart()
	c.Client = server.Client()
	writes.wantAll(c.Client)
	c.WantSameContainers(before)
	c.Scale("sleepers", 1)

	t.Log("the password is not visible anywhere")
	status, err := host.Kedge(t.Context(), "status", "--output=json").Output()
	if err != nil {
		t.Error(err)
	}
	for where, text := range map[string]string{"the log": server.Log(), "the status": string(status)} {
		for _, secret := range []string{password, "s3cret%2Fword"} {
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
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := newPostgres(t, network)
	s.start()
	host := network.NewHost(t, "server-1")
	files := s.files(host)
	address := s.host.Address.String()
	for _, test := range []struct {
		name, endpoint, want string
		args                 []string
	}{
		{"wrong password", "postgres://plain:wrong@" + address + "/cluster", "does not let kedge in: check user and password", nil},
		{"no certificate", "postgres://kedge:s3cret%2Fword@" + address + "/cluster", "does not let kedge in", nil},
		{"another authority", s.endpoint + "?sslrootcert=/etc/kedge/store/kedge.crt", "cannot agree on TLS: check that datastore-cafile", files},
		{"file that is missing", s.endpoint, "datastore-cafile: open /none: no such file", []string{"--datastore-cafile=/none"}},
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
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := newPostgres(t, network)
	s.start()
	first := s.startServer(network, "server-1")
	first.WaitReady()
	c := cluster.Of(t, first)

	stranger := s.startServer(network, "server-3")
	if code := stranger.WaitExit(patience); code == 0 {
		t.Error("a server without the token started")
	}
	stranger.WaitLog("there is a cluster at datastore-endpoint already: give this server the cluster's token")

	second := s.startServer(network, "server-2", "--token="+first.Token())
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

	writes := startWrites(t, clients[1])
	writes.more(20)
	first.Kill9()
	writes.more(100)
	first.Start()
	first.WaitReady()
	writes.stop()
	writes.wantAll(first.Client())
	c.Client = first.Client()
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
}

// writes creates ConfigMaps one after the other, and remembers which were acknowledged.
type writes struct {
	t            *testing.T
	cancel       context.CancelFunc
	done         chan struct{}
	acknowledged chan string
	faults       chan error
	all          map[string]bool
}

func startWrites(t *testing.T, client kubernetes.Interface) *writes {
	ctx, cancel := context.WithCancel(t.Context())
	w := &writes{t: t, cancel: cancel, done: make(chan struct{}), acknowledged: make(chan string, 1<<20), faults: make(chan error, 1), all: map[string]bool{}}
	t.Cleanup(cancel)
	start := time.Now().UnixNano()
	go func() {
		defer close(w.done)
		for n := 0; ctx.Err() == nil; n++ {
			name := fmt.Sprintf("write-%d-%d", start, n)
			attempt, stop := context.WithTimeout(ctx, 15*time.Second)
			_, err := client.CoreV1().ConfigMaps("default").Create(attempt, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			stop()
			if err == nil {
				w.acknowledged <- name
				continue
			}
			select {
			case <-w.faults:
			default:
			}
			w.faults <- err
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return w
}

// more waits until n more writes have been acknowledged.
func (w *writes) more(n int) {
	w.t.Helper()
	patient := time.After(patience)
	for range n {
		select {
		case name := <-w.acknowledged:
			w.all[name] = true
		case <-patient:
			var last error
			select {
			case last = <-w.faults:
			default:
			}
			w.t.Fatalf("no more writes: %v", last)
		}
	}
}

// refused waits until a write fails with an error from the API.
func (w *writes) refused() {
	w.t.Helper()
	harness.Eventually(w.t, patience, "writes to be refused", func() error {
		err := <-w.faults
		if !apierrors.IsInternalError(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) {
			return err
		}
		w.t.Logf("refused: %v", err)
		return nil
	})
}

func (w *writes) stop() {
	w.cancel()
	<-w.done
	close(w.acknowledged)
	for name := range w.acknowledged {
		w.all[name] = true
	}
}

// wantAll checks that all acknowledged writes are there.
func (w *writes) wantAll(client kubernetes.Interface) {
	w.t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	there := map[string]bool{}
	for _, item := range list.Items {
		there[item.Name] = true
	}
	for name := range w.all {
		if !there[name] {
			w.t.Errorf("%s was acknowledged, and is lost", name)
		}
	}
	w.t.Logf("%d acknowledged writes are there", len(w.all))
}
