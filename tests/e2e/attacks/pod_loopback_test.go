package attacks

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// inNetwork runs f in the network namespace of a process on a host, on a thread that ends with f.
func inNetwork(host *harness.Host, process string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(host.Path("/proc/" + process + "/ns/net"))
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// sendRaw sends an IPv4 packet from the interface eth0 of a pod, as a process with CAP_NET_RAW can.
// Containers have it by default.
func sendRaw(host *harness.Host, process string, gateway net.HardwareAddr, packet func(own netip.Addr) []byte) error {
	return inNetwork(host, process, func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addresses, err := device.Addrs()
		if err != nil {
			return err
		}
		own, err := netip.ParsePrefix(addresses[0].String())
		if err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(socket)
		return unix.Sendto(socket, frame(device.HardwareAddr, gateway, packet(own.Addr())), 0, &unix.SockaddrLinklayer{Ifindex: device.Index})
	})
}

// TestPodReachesLoopback lets a pod send to 127.0.0.1 of its node. Another pod has a host port
// there, for which the node routes such packets.
func TestPodReachesLoopback(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	host := c.Server.Host
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: published}
spec:
  nodeName: ` + host.Name + `
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + image.TestserverName + `
    args: [serve, "8080"]
    ports: [{containerPort: 8080, hostPort: 8888}]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`)
	c.Pod("published")
	c.RunWeb("attacker", host.Name)
	process, gateway := processOf(c, host, "attacker"), mac(c, host, "cni0")

	loopback := netip.MustParseAddrPort("127.0.0.1:5005")
	public := netip.AddrPortFrom(host.Address, 5006)
	received := make(chan string, 10)
	for _, address := range []netip.AddrPort{loopback, public} {
		conn := host.ListenPacket("udp", address.String())
		go func() {
			buffer := make([]byte, 100)
			for {
				n, _, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				received <- string(buffer[:n])
			}
		}()
	}
	for range 3 {
		for _, to := range []netip.AddrPort{loopback, public} {
			err := sendRaw(host, process, gateway, func(own netip.Addr) []byte {
				return datagram(netip.AddrPortFrom(own, 5000), to, to.String())
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// Packets sent before the last one have arrived, or never will.
	for arrived := 0; arrived < 3; {
		select {
		case text := <-received:
			if text == public.String() {
				arrived++
			} else {
				t.Errorf("a packet of a pod reached %s of its node, want it dropped", text)
			}
		case <-time.After(cluster.Patience):
			t.Fatal("not even packets for the node's own address arrive")
		}
	}

	t.Log("the honest ways to a host port")
	for _, address := range []string{"127.0.0.1", host.Address.String()} {
		c.Eventually("the pod to answer at "+address, func() error {
			output, err := host.Command(t.Context(), "curl", "--silent", "--show-error", "--max-time", "10", "http://"+address+":8888/").Output()
			if err == nil && !strings.Contains(string(output), "hostname=published") {
				err = fmt.Errorf("it says %s", output)
			}
			return err
		})
	}
}

// TestPodAsksOtherNodesDNS asks the DNS of another node at its own port, which only that node and
// its pods may use.
func TestPodAsksOtherNodesDNS(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1").Host
	c.RunWeb("attacker", agent.Name)
	ask := func(around ...string) error {
		output, err := agent.Command(t.Context(), "timeout", append(append([]string{"5"}, around...), "bash", "-c", "exec 3<>/dev/tcp/"+c.Server.Host.Address.String()+"/10053")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	}
	pod := []string{"nsenter", "--net=/proc/" + processOf(c, agent, "attacker") + "/ns/net"}
	for name, around := range map[string][]string{"a pod of another node": pod, "another node": nil} {
		if ask(around...) == nil {
			t.Errorf("%s reaches the DNS of the server's node", name)
		}
	}
	c.In("attacker", "DNS to answer", func(output string) bool { return strings.Contains(output, "10.43.0.1") },
		"/testserver", "lookup", "host", "kubernetes.default.svc.cluster.local")
}
