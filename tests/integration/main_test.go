// Package integration starts the real kedge on hosts made by tests/harness and uses it as a user
// would. There is a file for each scenario. Tests that do not disturb others share one server, each
// in a namespace of its own. The other tests have a host of their own. `make integration` runs
// them.
package integration

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	busybox    = image.BusyboxName
	testserver = image.TestserverName
)

// images builds the image archives for the tests' pods.
var images = sync.OnceValues(func() ([]string, error) {
	repository, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	first, err := image.Busybox(repository)
	if err != nil {
		return nil, err
	}
	second, err := image.Testserver(repository)
	return []string{first, second}, err
})

// newHost makes a host with the images of the tests.
func newHost(t harness.T, network *harness.Network, name string) *harness.Host {
	t.Helper()
	archives, err := images()
	if err != nil {
		t.Fatalf("build images: %v", err)
	}
	host := network.NewHost(t, name)
	host.Preload(archives...)
	return host
}

// runTestserver returns a command that runs testserver on a host, not in a pod. It needs the images
// to be built.
func runTestserver(host *harness.Host, args ...string) *harness.Cmd {
	repository, _ := harness.Repository()
	return host.Command(context.Background(), image.TestserverProgram(repository), args...)
}

// The neighbour is also the nameserver of the shared server, and knows these names.
const (
	outsideName    = "outside.example."
	outsideAddress = "192.0.2.53"
)

// shared has the server that tests share, and a host beside it without kedge.
var shared struct {
	once      sync.Once
	server    *harness.Server
	neighbour *harness.Host
}

// sharedServer returns the server that tests share. The first call starts it.
func sharedServer(t *testing.T) *harness.Server {
	t.Helper()
	harness.Require(t)
	shared.once.Do(func() {
		done := make(chan struct{})
		// A fault ends this goroutine (Suite.Fatalf), not the test's.
		go func() {
			defer close(done)
			network := harness.NewNetwork(&suite)
			shared.neighbour = network.NewHost(&suite, "neighbour")
			host := newHost(&suite, network, "server-1")
			if err := runTestserver(shared.neighbour, "dns", outsideName, outsideAddress).Start(); err != nil {
				suite.Fatalf("start nameserver: %v", err)
			}
			host.WriteFile("/etc/resolv.conf", "nameserver "+shared.neighbour.Address.String()+"\n")
			server := host.StartServer(&suite)
			server.WaitReady()
			shared.server = server
		}()
		<-done
	})
	if shared.server == nil {
		t.Fatal("the shared server did not start: the end of the output says why")
	}
	return shared.server
}
