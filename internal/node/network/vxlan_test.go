package network

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestWatchDevicesOutlivesItsSubscription ends the first subscriptions, as netlink does when the kernel
// has dropped a message. It removes the device while there is no subscription.
func TestWatchDevicesOutlivesItsSubscription(t *testing.T) {
	host(t)
	subscriptions := 0
	subscribe := func(updates chan<- netlink.LinkUpdate, done <-chan struct{}, options netlink.LinkSubscribeOptions) error {
		subscriptions++
		if subscriptions > 1 {
			return netlink.LinkSubscribeWithOptions(updates, done, options)
		}
		close(updates)
		testutil.Command(t, "ip link delete eth0")
		return nil
	}
	// The host's clean-up removes this link again.
	defer testutil.Command(t, "ip link add eth0 type veth peer name wire")
	testutil.Command(t, "ip link add vx type veth peer name vx-peer")
	defer testutil.Command(t, "ip link delete vx")
	if !watchDevices(t.Context(), []string{"vx", "eth0"}, subscribe) {
		t.Error("the device's end was not noticed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if watchDevices(ctx, []string{"vx"}, netlink.LinkSubscribeWithOptions) {
		t.Error("an existing device was reported as gone")
	}
}

// TestPeers adds a peer with both families twice, and removes it twice.
func TestPeers(t *testing.T) {
	host(t)
	vxlanDevice, vxlanDeviceV6 := vxlanDevices(1)
	for device, local := range map[string]string{vxlanDevice: "192.0.2.1", vxlanDeviceV6: "2001:db8::1"} {
		testutil.Command(t, "ip link add "+device+" type vxlan id 1 dstport 8472 dev eth0 nolearning local "+local)
		testutil.Command(t, "ip link set "+device+" up")
		defer testutil.Command(t, "ip link delete "+device)
	}
	vtep := net.HardwareAddr{0x12, 0xc6, 0x65, 0x89, 0xb4, 0xe3}
	state := func() string {
		return testutil.Command(t, "ip route") + testutil.Command(t, "ip -6 route") + testutil.Command(t, "ip neigh show nud permanent") +
			testutil.Command(t, "bridge fdb show dev "+vxlanDevice) + testutil.Command(t, "bridge fdb show dev "+vxlanDeviceV6)
	}
	for _, p := range []struct{ device, pods, host string }{
		{vxlanDevice, "10.42.1.0/24", "192.0.2.2"},
		{vxlanDeviceV6, "fd42:0:0:1::/64", "2001:db8::2"},
	} {
		_, pods, err := net.ParseCIDR(p.pods)
		if err != nil {
			t.Fatal(err)
		}
		peer := peer{p.device, pods, vtep, net.ParseIP(p.host)}
		for range 2 {
			if err := peer.add(); err != nil {
				t.Fatal(err)
			}
		}
		now := state()
		for _, want := range []string{p.pods + " via " + pods.IP.String(), pods.IP.String() + " dev " + p.device + " lladdr " + vtep.String(), vtep.String() + " dst " + p.host} {
			if !strings.Contains(now, want) {
				t.Errorf("want %q in\n%s", want, now)
			}
		}
		for range 2 {
			if err := peer.remove(); err != nil {
				t.Error(err)
			}
		}
		if now := state(); strings.Contains(now, p.pods) || strings.Contains(now, vtep.String()) {
			t.Errorf("something is left:\n%s", now)
		}
	}
}
