package integration

import (
	"errors"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestNodeMoves gives the host another address while kedge runs, as DHCP may do. The node must get
// that address by itself, and its containers must keep running.
func TestNodeMoves(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	server := newHost(t, harness.NewNetwork(t), "server-1").StartServer(t)
	server.WaitReady()
	s := newSpaceOn(t, server)
	s.webServer(1, corev1.ServiceTypeClusterIP)
	s.sleeper("client")
	s.pods("app=web", 1)
	before, process := s.containers(), server.Process().Pid

	const moved = "172.31.0.77"
	busybox := harness.Busybox(t)
	for _, change := range []string{
		"ip addr flush dev eth0", "ip addr add " + moved + "/24 dev eth0", "ip route add default via 172.31.0.254",
	} {
		command := server.Host.Command(s.ctx, busybox, strings.Fields(change)...)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", change, err, output)
		}
	}
	s.eventually("the node to have its new address", func() error {
		node, err := s.client.CoreV1().Nodes().Get(s.ctx, "server-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, address := range node.Status.Addresses {
			if address.Address == moved {
				return nil
			}
		}
		return errors.New("it has not")
	})
	if server.Process().Pid != process || !strings.Contains(server.Log(), "starting anew") {
		t.Error("kedge did not start itself again in the same process")
	}
	// exec uses the kubelet at the new address, and the name is resolved by the DNS there.
	s.eventuallyIn("client", "the Service's name", func(output string) bool {
		return strings.Contains(output, "hostname=web-")
	}, "/testserver", "fetch", "http://web/")
	if after := s.containers(); !maps.Equal(after, before) {
		t.Errorf("the containers are\n%v\nand were\n%v", after, before)
	}
}
