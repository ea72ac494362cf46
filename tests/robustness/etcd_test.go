package robustness

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
	"github.com/kedge-dev/kedge/tests/robustness/served"
)

// etcdOnly has the arguments of a server for etcd only. An API server would refuse the traffic's
// values, and write too.
var etcdOnly = []string{"--disable-agent", "--disable-apiserver", "--disable-controller-manager", "--disable-scheduler"}

// etcdTarget is etcd in three servers. Clients are at the local port of each member, so a member that
// is cut off still has clients.
type etcdTarget struct {
	// t is the test of the present run.
	t       *testing.T
	servers []*harness.Server
	disks   []*slowfs.Disk
}

// newEtcd starts three servers, and returns a function that prepares them for a run.
func newEtcd(t *testing.T) func(*testing.T) *target {
	t.Helper()
	network := harness.NewNetwork(t)
	e := &etcdTarget{t: t}
	on := &target{etcd: true}
	for i := range 3 {
		host := network.NewHost(t, fmt.Sprint("server-", i+1))
		disk := slowfs.Mount(t, host, databaseFolder, slowfs.Limits{})
		t.Cleanup(disk.Resume)
		e.disks = append(e.disks, disk)
		args := append([]string{"--cluster-init"}, etcdOnly...)
		if i > 0 {
			args = append(cluster.Joining(e.servers[0]), etcdOnly...)
		}
		e.servers = append(e.servers, host.StartServer(t, args...))
		e.waitVoters()
		on.endpoints = append(on.endpoints, relay(t, host))
		on.nemeses = append(on.nemeses, e.nemeses(i)...)
	}
	on.nemeses = append(on.nemeses, nemesis{"kill -9 of all servers", func(*rand.Rand) {
		for _, server := range e.servers {
			server.Kill9()
		}
	}})
	on.revive = e.revive
	return func(t *testing.T) *target {
		t.Helper()
		e.t = t
		e.clean()
		return on
	}
}

// waitVoters waits until the members of all servers have a vote.
func (e *etcdTarget) waitVoters() {
	e.t.Helper()
	var names []string
	for _, server := range e.servers {
		names = append(names, server.Host.Name)
	}
	member.WaitVoters(e.t, e.servers[0], names...)
}

// nemeses are the faults of one server.
func (e *etcdTarget) nemeses(index int) []nemesis {
	server, disk := func() *harness.Server { return e.servers[index] }, e.disks[index]
	host := server().Host
	name := host.Name
	during := func(least, most time.Duration, begin, end func()) func(*rand.Rand) {
		return func(random *rand.Rand) {
			begin()
			time.Sleep(between(random, least, most))
			end()
		}
	}
	signal := func(s os.Signal) func() { return func() { _ = server().Process().Signal(s) } }
	return append(links(host),
		nemesis{"kill -9 of " + name, func(*rand.Rand) { server().Kill9() }},
		nemesis{"an orderly restart of " + name, func(*rand.Rand) { server().Terminate() }},
		nemesis{"a pause of " + name, during(200*time.Millisecond, 5*time.Second, signal(unix.SIGSTOP), signal(unix.SIGCONT))},
		nemesis{"a power cut of " + name, func(*rand.Rand) {
			if err := disk.Cut(); err != nil {
				e.t.Fatal(err)
			}
			server().Kill9()
			disk.PowerOn()
		}},
		nemesis{"a slow disk of " + name, during(time.Second, 4*time.Second,
			func() { disk.SetLimits(slowfs.SDCard) }, func() { disk.SetLimits(slowfs.Limits{}) })},
		nemesis{"a disk of " + name + " that does not answer", during(200*time.Millisecond, 4*time.Second, disk.Stall, disk.Resume)},
		nemesis{"the defragmentation of " + name, func(*rand.Rand) {
			e.ask(server(), func(ctx context.Context, client *clientv3.Client) error {
				_, err := client.Defragment(ctx, client.Endpoints()[0])
				return err
			})
		}},
		nemesis{"the replacement of " + name, func(*rand.Rand) { e.replace(index) }},
	)
}

// ask asks a member until it answers.
func (e *etcdTarget) ask(server *harness.Server, question func(context.Context, *clientv3.Client) error) {
	e.t.Helper()
	harness.Eventually(e.t, patience, "the member of "+server.Host.Name, func() error { return member.With(server.Host, question) })
}

// replace removes a member, and has the server join again with an empty disk.
func (e *etcdTarget) replace(index int) {
	e.t.Helper()
	gone, other := e.servers[index], e.servers[(index+1)%len(e.servers)]
	gone.Kill9()
	e.ask(other, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if strings.HasPrefix(m.Name, gone.Host.Name+"-") {
				_, err := client.MemberRemove(ctx, m.ID)
				return err
			}
		}
		return nil
	})
	// The folder of the database is a mount, so only its contents can go.
	kept, err := filepath.Glob(gone.Host.Path(databaseFolder) + "/*")
	if err != nil {
		e.t.Fatal(err)
	}
	for _, folder := range kept {
		if err := os.RemoveAll(folder); err != nil {
			e.t.Fatal(err)
		}
	}
	// The log of this server is shown if this run fails, and the server lives until the test of all runs ends.
	e.servers[index] = gone.Host.StartServer(e.t, append(cluster.Joining(other), etcdOnly...)...)
	e.waitVoters()
}

// revive starts the servers that have ended, and waits until all members answer.
func (e *etcdTarget) revive() {
	e.t.Helper()
	for _, server := range e.servers {
		if !server.Runs() {
			server.Start()
		}
	}
	for _, server := range e.servers {
		e.ask(server, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Get(ctx, "any")
			return err
		})
	}
}

// clean removes the keys of the run before.
func (e *etcdTarget) clean() {
	e.t.Helper()
	e.ask(e.servers[0], func(ctx context.Context, client *clientv3.Client) error {
		for _, key := range []string{"/registry/pods/", "tombstone", "compact_rev_key"} {
			if _, err := client.Delete(ctx, key, clientv3.WithPrefix()); err != nil {
				return err
			}
		}
		return nil
	})
}

// relay serves the member of a host without TLS, because the clients of the traffic have none. It
// returns the address.
func relay(t *testing.T, host *harness.Host) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go served.Relay(listener, func() (net.Conn, error) { return dial(t.Context(), host) })
	return "http://" + listener.Addr().String()
}

// dial connects to the member of a host, as a client of etcd does.
func dial(ctx context.Context, host *harness.Host) (net.Conn, error) {
	config, err := member.TLS(host)
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"h2"}
	conn, err := host.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", "2379"))
	if err != nil {
		return nil, err
	}
	return tls.Client(conn, config), nil
}
