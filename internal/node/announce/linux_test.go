package announce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// hear returns a function that waits for the next packet of an Ethernet type on an interface,
// whose payload has all the bytes.
func hear(t *testing.T, index int, etherType uint16) func(wanted []byte) {
	t.Helper()
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(protocol))
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	return func(wanted []byte) {
		t.Helper()
		buffer := make([]byte, 2000)
		for {
			n, _, err := unix.Recvfrom(socket, buffer, 0)
			if err != nil {
				t.Fatalf("no packet with %v: %v", wanted, err)
			}
			if bytes.Contains(buffer[:n], wanted) {
				return
			}
		}
	}
}

// TestLinux has addresses on one end of a cable, and listens at the other.
func TestLinux(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes interfaces")
	}
	testutil.Command(t, "ip link add near type veth peer name far")
	t.Cleanup(func() {
		testutil.Command(t, "ip link del near")
		testutil.Command(t, "ip address del 192.0.2.129/28 dev lo")
	})
	for _, command := range []string{
		"ip link set lo up", "ip link set near up", "ip link set far up",
		"ip address add 192.0.2.1/24 dev near", "ip address add 192.0.2.129/28 dev lo", "ip address add fd00::1/64 dev near nodad",
	} {
		testutil.Command(t, command)
	}
	far, err := net.InterfaceByName("far")
	if err != nil {
		t.Fatal(err)
	}
	arp, ndp := hear(t, far.Index, unix.ETH_P_ARP), hear(t, far.Index, unix.ETH_P_IPV6)

	for text, heard := range map[string]func([]byte){"192.0.2.100": arp, "fd00::100": ndp} {
		address := netip.MustParseAddr(text)
		place, err := Linux{}.Place(address)
		if err != nil {
			t.Fatal(err)
		}
		if place.String() != "near" {
			t.Fatalf("%s belongs on %s", address, place)
		}
		for range 2 { // puts it, and extends its lifetime
			if err := place.Put(30 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
		shown := testutil.Command(t, "ip -oneline address show dev near")
		for _, word := range []string{text + "/", "deprecated", "valid_lft 30sec preferred_lft 0sec"} {
			if !strings.Contains(shown, word) {
				t.Errorf("there is no %s in\n%s", word, shown)
			}
		}
		// A link-local address is tentative at first, and NDP needs one.
		deadline := time.Now().Add(20 * time.Second)
		for err = place.Tell(); err != nil && time.Now().Before(deadline); err = place.Tell() {
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			t.Fatal(err)
		}
		heard(address.AsSlice())

		if _, err := (Linux{}).Place(address); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		if err := errors.Join(place.Remove(), place.Remove()); err != nil {
			t.Error(err)
		}
		if err := place.Put(time.Second); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); strings.Contains(testutil.Command(t, "ip -oneline address show dev near"), text+"/"); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not vanish", text)
			}
		}
	}

	if place, err := (Linux{}).Place(netip.MustParseAddr("192.0.2.130")); err != nil || place.String() != "lo" {
		t.Errorf("the smaller network is of %v: %v", place, err)
	}
	for _, text := range []string{"192.0.2.1", "203.0.113.77", "fd01::1"} {
		if _, err := (Linux{}).Place(netip.MustParseAddr(text)); !errors.Is(err, ErrUnfit) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}
