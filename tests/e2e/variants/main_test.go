// Package variants starts the real kedge with every kind of configuration, and checks each time
// that a pod reaches a Service by its name and that the host reaches its NodePort. There is a file
// for each part that is configured. `make e2e` runs it. Each test has hosts of its own, made by
// tests/harness.
package variants

import (
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

// newHost makes a host, alone on a network, with the images of the tests.
func newHost(t *testing.T) *harness.Host {
	t.Helper()
	harness.Require(t)
	return newHostOn(t, harness.NewNetwork(t), "server-1")
}

func newHostOn(t *testing.T, network *harness.Network, name string) *harness.Host {
	t.Helper()
	archives, err := images()
	if err != nil {
		t.Fatalf("build images: %v", err)
	}
	host := network.NewHost(t, name)
	host.Preload(archives...)
	return host
}
