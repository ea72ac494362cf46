package loadbalancer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestElected has three servers with a node each. The one that runs the controllers dies, and its
// address leaves the status before another server is elected.
func TestElected(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := network.NewHost(t, "server-1").StartServer(t, "--cluster-init")
	first.WaitReady()
	servers := []*harness.Server{first}
	for i := range 2 {
		server := network.NewHost(t, fmt.Sprint("server-", i+2)).StartServer(t, "--server=https://"+first.Host.Address.String()+":6443", "--token="+first.Token())
		server.WaitReady()
		servers = append(servers, server)
	}
	b := &balanced{Cluster: cluster.Of(t, first)}
	for _, server := range servers {
		b.hosts = append(b.hosts, server.Host)
	}
	b.serve("web", 80, "")
	b.has("web", of(b.hosts...)...)

	for _, death := range []struct {
		how       string
		die, live func(*harness.Server)
	}{
		{"was killed", (*harness.Server).Kill9, (*harness.Server).Start},
		{"was cut off", func(s *harness.Server) { s.Host.CutLink() }, func(s *harness.Server) { s.Host.HealLink() }},
	} {
		i := slices.IndexFunc(servers, func(server *harness.Server) bool { return strings.HasPrefix(b.elected(), server.Host.Name+"_") })
		if i < 0 {
			t.Fatalf("%q is elected", b.elected())
		}
		dead := servers[i]
		others := slices.DeleteFunc(slices.Clone(b.hosts), func(host *harness.Host) bool { return host == dead.Host })
		b.Server = servers[(i+1)%len(servers)]
		b.Client = b.Server.Client()
		death.die(dead)
		began := time.Now()
		b.Eventually("the address to leave the status", func() error {
			// A request may fail while etcd chooses another leader.
			service, err := b.Client.CoreV1().Services(cluster.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
			if err == nil && len(service.Status.LoadBalancer.Ingress) == len(servers) {
				err = fmt.Errorf("it has %d addresses", len(servers))
			}
			return err
		})
		t.Logf("after %s %s, its address left the status after %s", dead.Host.Name, death.how, time.Since(began).Round(100*time.Millisecond))
		b.has("web", of(others...)...)
		b.Eventually("another server to be elected", func() error {
			if elected := b.elected(); strings.HasPrefix(elected, dead.Host.Name+"_") {
				return fmt.Errorf("%s is", elected)
			}
			return nil
		})
		t.Logf("another server was elected after %s", time.Since(began).Round(100*time.Millisecond))
		b.stays("web", 10*time.Second, of(others...)...)
		death.live(dead)
		dead.WaitReady()
		b.has("web", of(b.hosts...)...)
	}
}

// elected returns the identity of the server that runs the controllers.
func (b *balanced) elected() string {
	b.Helper()
	lease, err := b.Client.CoordinationV1().Leases("kube-system").Get(b.Context(), "kedge", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

// stays makes sure that a Service has exactly these addresses for a while.
func (b *balanced) stays(name string, long time.Duration, want ...string) {
	b.Helper()
	slices.Sort(want)
	for began := time.Now(); time.Since(began) < long; time.Sleep(200 * time.Millisecond) {
		if got := b.ingress(name); !slices.Equal(got, want) {
			b.Fatalf("Service %s has the addresses %v, want %v", name, got, want)
		}
	}
}
