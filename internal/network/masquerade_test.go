package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestMartians has another host ask for what this one serves to itself alone, where the
// kernel routes such addresses, as it does after the first hostPort.
func TestMartians(t *testing.T) {
	host(t)
	for _, command := range []string{
		"ip netns add peer",
		"ip link set wire netns peer",
		"ip -n peer address add 192.0.2.9/24 dev wire",
		"ip -n peer link set wire up",
		"ip netns exec peer sysctl -qw net.ipv4.conf.wire.route_localnet=1",
		"ip -n peer route add 127.0.0.1/32 via 192.0.2.1 dev wire",
	} {
		testutil.Command(t, command)
	}
	t.Cleanup(func() {
		// With the namespace eth0 would go too, some time.
		testutil.Command(t, fmt.Sprintf("ip -n peer link set wire netns %d", os.Getpid()))
		testutil.Command(t, "ip netns delete peer")
		testutil.Command(t, "umount /run/netns")
	})
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, address := range []string{"127.0.0.1:0", "192.0.2.1:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	reaches := func(address string) bool {
		ip, port, _ := net.SplitHostPort(address)
		return exec.Command("ip", "netns", "exec", "peer", "timeout", "2", "bash", "-c", "</dev/tcp/"+ip+"/"+port).Run() == nil
	}
	if !reaches(addresses[0]) {
		t.Error("without the rules the test shows nothing: the other host cannot reach 127.0.0.1")
	}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}
	for range 2 { // as when the backend is set up again
		if err := masquerade(t.Context(), cidrs, cidrs); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { testutil.Command(t, "nft delete table inet "+masqueradeTable.name) })
	if reaches(addresses[0]) {
		t.Error("another host reaches 127.0.0.1")
	}
	if !reaches(addresses[1]) {
		t.Error("another host does not reach the address that is for it")
	}
	own, err := net.Dial("tcp", addresses[0])
	if err != nil {
		t.Fatalf("this host does not reach its 127.0.0.1: %v", err)
	}
	own.Close()
}
