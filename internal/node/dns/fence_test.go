package dns

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestFence asks a node's port 10053 from every place that could ask.
func TestFence(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	const node = "192.0.2.1"
	// The neighbour on the network is connected by a veth, as it is in containers.
	neighbour := newPeer(t, "uplink", "192.0.2.2/24")
	addAddress(t, "uplink", node+"/24")
	// There are pods as bridge CNI makes them, as Calico does, and one of Docker's.
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
	must(t, netlink.LinkAdd(bridge))
	must(t, netlink.LinkSetUp(bridge))
	addAddress(t, "cni0", "10.42.0.1/24")
	pod := newPeer(t, "vethpod", "10.42.0.5/24")
	vethpod, err := netlink.LinkByName("vethpod")
	must(t, err)
	must(t, netlink.LinkSetMaster(vethpod, bridge))
	calico := newPeer(t, "cali1", "172.20.0.5/32")
	cali1, err := netlink.LinkByName("cali1")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: cali1.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(net.ParseIP("172.20.0.5"))}))
	docker := newPeer(t, "docker0", "172.17.0.2/16")
	addAddress(t, "docker0", "172.17.0.1/16")

	f, err := newFence([]netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")})
	must(t, err)
	must(t, f.update(t.Context()))
	if want := []string{"docker0", "uplink"}; !slices.Equal(f.outside, want) {
		t.Errorf("outside are %v, want %v", f.outside, want)
	}

	target := netip.MustParseAddrPort(node + ":10053").String()
	packets, err := net.ListenPacket("udp", target)
	must(t, err)
	defer packets.Close()
	listener, err := net.Listen("tcp", target)
	must(t, err)
	defer listener.Close()
	received := make(chan string, 10)
	go func() {
		for {
			buffer := make([]byte, 64)
			n, _, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			received <- string(buffer[:n])
		}
	}()
	here := &peer{t: t}
	// The last asker is admitted. Packets of one thread stay in order, so when its packet arrives,
	// earlier packets that have not arrived never will.
	for _, asker := range []struct {
		name string
		peer *peer
		in   bool
	}{
		{"neighbour", neighbour, false},
		{"docker container", docker, false},
		{"pod", pod, true},
		{"calico pod", calico, true},
		{"node", here, true},
	} {
		ask := func() {
			conn, err := net.Dial("udp", target)
			must(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte(asker.name))
			must(t, err)
			if asker.in {
				tcp, err := net.Dial("tcp", target)
				if err != nil {
					t.Errorf("connect from %s: %v", asker.name, err)
					return
				}
				tcp.Close()
			} else if tcp, err := net.DialTimeout("tcp", target, 200*time.Millisecond); err == nil {
				tcp.Close()
				t.Errorf("%s could connect", asker.name)
			}
		}
		if asker.peer == here {
			ask()
		} else {
			asker.peer.do(ask)
		}
		if asker.in {
			if got := <-received; got != asker.name {
				t.Errorf("received from %s, want only %s", got, asker.name)
			}
		}
	}

	// An interface that gets an outside address is outside from then on.
	addAddress(t, "cali1", "198.51.100.1/24")
	must(t, f.update(t.Context()))
	if want := []string{"cali1", "docker0", "uplink"}; !slices.Equal(f.outside, want) {
		t.Errorf("outside are %v, want %v", f.outside, want)
	}

	for range 2 {
		must(t, Cleanup(t.Context()))
		rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		must(t, err)
		if strings.Contains(string(rules), tableName) {
			t.Errorf("after Cleanup: got\n%s\nwant no table of kedge", rules)
		}
	}
}

func TestConsistent(t *testing.T) {
	other := errors.New("other")
	for name, c := range map[string]struct {
		errs []error
		want error
		asks int
	}{
		"at once":         {errs: []error{nil}, asks: 1},
		"changing":        {errs: []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted, nil}, asks: 3},
		"another fault":   {errs: []error{netlink.ErrDumpInterrupted, other}, want: other, asks: 2},
		"always changing": {errs: slices.Repeat([]error{netlink.ErrDumpInterrupted}, 20), want: netlink.ErrDumpInterrupted, asks: 10},
	} {
		t.Run(name, func(t *testing.T) {
			asks := 0
			result, err := consistent(func() ([]int, error) {
				asks++
				return []int{asks}, c.errs[asks-1]
			})
			if !errors.Is(err, c.want) || asks != c.asks || result[0] != asks {
				t.Errorf("%v, %v after asking %d times, want %v after %d", result, err, asks, c.want, c.asks)
			}
		})
	}
}
