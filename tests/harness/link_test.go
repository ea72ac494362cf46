package harness

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// probePort is the port on which hosts of these tests answer.
const probePort = "4000"

// echoes makes the host send back each UDP packet, after the address that it came from, until the test
// ends.
func (h *Host) echoes() {
	conn := h.ListenPacket("udp", ":"+probePort)
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(from.String()+" "+string(buffer[:n])), from)
		}
	}()
}

// probe sends count packets to a host that echoes. It returns how many answers came back within a
// second after the last packet, and what the host said.
func (h *Host) probe(t *testing.T, to netip.Addr, count int) (answers int, said string) {
	t.Helper()
	conn, err := h.DialContext(t.Context(), "udp", net.JoinHostPort(to.String(), probePort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range count {
		// If nobody answers there, a later write may fail.
		_, _ = io.WriteString(conn, "ping")
		time.Sleep(time.Millisecond)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	buffer := make([]byte, 2048)
	for answers < count {
		n, err := conn.Read(buffer)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			continue
		}
		answers++
		said = string(buffer[:n])
	}
	return answers, said
}

// reaches waits until the host gets an answer from another host.
func (h *Host) reaches(t *testing.T, to netip.Addr) {
	t.Helper()
	Eventually(t, time.Minute, h.Name+" to reach "+to.String(), func() error {
		if answers, _ := h.probe(t, to, 1); answers == 0 {
			return errors.New("no answer")
		}
		return nil
	})
}

func TestLinkIsCutAndHealed(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two, three := network.NewHost(t, "one"), network.NewHost(t, "two"), network.NewHost(t, "three")
	one.echoes()
	two.echoes()

	two.CutLink()
	for _, way := range []struct {
		from *Host
		to   netip.Addr
	}{{one, two.Address}, {one, two.Address6}, {two, one.Address}, {two, one.Address6}} {
		if answers, _ := way.from.probe(t, way.to, 3); answers > 0 {
			t.Errorf("%s reaches %s over a cut link", way.from.Name, way.to)
		}
	}
	three.reaches(t, one.Address)
	if carrier := run(t, two, "cat", "/sys/class/net/eth0/carrier"); carrier != "1" {
		t.Errorf("the host sees that its link is cut: carrier %s", carrier)
	}
	two.HealLink()
	one.reaches(t, two.Address)
	two.reaches(t, one.Address6)
}

func TestLinkIsCutOneWay(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")
	one.echoes()
	two.echoes()
	// The hosts have to know each other's link addresses before one of them falls silent.
	one.reaches(t, two.Address)
	arrives := func(from, to *Host) {
		t.Helper()
		conn := to.ListenPacket("udp", ":4001")
		defer conn.Close()
		sender, err := from.DialContext(t.Context(), "udp", net.JoinHostPort(to.Address.String(), "4001"))
		if err != nil {
			t.Fatal(err)
		}
		defer sender.Close()
		buffer := make([]byte, 10)
		Eventually(t, time.Minute, "a packet from "+from.Name+" to "+to.Name, func() error {
			_, _ = io.WriteString(sender, "ping") // the next attempt may succeed
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			_, _, err := conn.ReadFrom(buffer)
			return err
		})
	}
	unanswered := func() {
		t.Helper()
		for _, way := range []struct{ from, to *Host }{{one, two}, {two, one}} {
			if answers, _ := way.from.probe(t, way.to.Address, 3); answers > 0 {
				t.Errorf("%s got an answer of %s over a link that is cut one way", way.from.Name, way.to.Name)
			}
		}
	}
	two.CutLinkFrom()
	unanswered()
	arrives(one, two)
	two.HealLink()
	one.reaches(t, two.Address)
	two.CutLinkTo()
	unanswered()
	arrives(two, one)
	two.HealLink()
	one.reaches(t, two.Address)
}

func TestLinkLosesPackets(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")
	two.echoes()
	one.reaches(t, two.Address)

	const probes = 300
	one.LosePackets(50)
	// About a quarter should come back. None or all would be impossible.
	if answers, _ := one.probe(t, two.Address, probes); answers == 0 || answers == probes {
		t.Errorf("%d of %d probes were answered over a link that loses half of all packets each way", answers, probes)
	}
	one.CutLink()
	if answers, _ := one.probe(t, two.Address, 3); answers > 0 {
		t.Error("a link that loses packets was not cut")
	}
	one.HealLink()
	one.LosePackets(0)
	one.reaches(t, two.Address)
}

func TestLinkIsSlow(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")
	two.echoes()

	const delay = 50 * time.Millisecond
	two.DelayPackets(delay)
	for _, address := range []netip.Addr{two.Address, two.Address6} {
		one.reaches(t, address)
		started := time.Now()
		one.reaches(t, address)
		if took := time.Since(started); took < 2*delay {
			t.Errorf("an answer took %s over a link with a delay of %s each way", took, delay)
		}
	}
	// The data need several packets, and are larger than one.
	const size = 1 << 20
	if got := transfer(t, one, two, size); got != size {
		t.Errorf("%d of %d bytes arrived", got, size)
	}
	two.DelayPackets(0)
	one.reaches(t, two.Address)
}

func TestLinkIsNarrow(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")

	const size = 1 << 20
	one.LimitBandwidth(80_000)
	one.LimitBandwidth(16_000) // 2 MB/s
	for _, way := range [][2]*Host{{one, two}, {two, one}} {
		started := time.Now()
		if got := transfer(t, way[0], way[1], size); got != size {
			t.Errorf("%d of %d bytes arrived", got, size)
		}
		// The transfer must take at least half of the computed time, because bursts are allowed.
		if took := time.Since(started); took < 250*time.Millisecond {
			t.Errorf("%d bytes from %s to %s took %s at 2 MB/s", size, way[0].Name, way[1].Name, took)
		}
	}
	one.LimitBandwidth(0)
	transfer(t, one, two, size)
}

// transfer sends size bytes by TCP, and returns how many arrived.
func transfer(t *testing.T, from, to *Host, size int64) int64 {
	t.Helper()
	listener := to.Listen(":0")
	defer listener.Close()
	sent := make(chan error, 1)
	go func() {
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := from.DialContext(ctx, "tcp", net.JoinHostPort(to.Address.String(), port))
		if err != nil {
			listener.Close()
			sent <- err
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.CopyN(conn, zeros{}, size)
		conn.Close()
		sent <- err
	}()
	var got int64
	conn, err := listener.Accept()
	if err == nil {
		got, err = io.Copy(io.Discard, conn)
		conn.Close()
	}
	if err := errors.Join(<-sent, err); err != nil {
		t.Fatal(err)
	}
	return got
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestNATHidesHosts(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	outside := network.NewHost(t, "outside")
	home, office := network.BehindNAT(t), network.BehindNAT(t)
	inside, beside, worker := home.NewHost(t, "inside"), home.NewHost(t, "beside"), office.NewHost(t, "worker")
	for _, host := range []*Host{outside, inside} {
		host.echoes()
	}

	for _, from := range []struct {
		host *Host
		site *Network
	}{{inside, home}, {worker, office}} {
		from.host.reaches(t, outside.Address)
		from.host.reaches(t, outside.Address6)
		_, said := from.host.probe(t, outside.Address, 1)
		if !strings.HasPrefix(said, from.site.Outside().String()+":") {
			t.Errorf("outside sees %q, not the address %s of the router", said, from.site.Outside())
		}
	}
	beside.reaches(t, inside.Address)

	// A host that knows the route does not get in either.
	run(t, outside, "ip", "route", "add", inside.Address.String(), "via", home.Outside().String())
	for _, to := range []netip.Addr{inside.Address, home.Outside()} {
		if answers, said := outside.probe(t, to, 3); answers > 0 {
			t.Errorf("%s answers from outside: %s", to, said)
		}
	}
	inside.CutLink()
	if answers, _ := inside.probe(t, outside.Address, 3); answers > 0 {
		t.Error("a cut link behind NAT carries packets")
	}
}

// TestFaultsGoWithTheHost gives a host every fault and removes it. The network must be as before.
func TestFaultsGoWithTheHost(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	before := network.state(t)
	t.Run("host", func(t *testing.T) {
		host := network.NewHost(t, "one")
		host.CutLink()
		host.LosePackets(10)
		host.LimitBandwidth(1000)
		host.DelayPackets(time.Millisecond)
	})
	Eventually(t, time.Minute, "the kernel to remove the host's interface", func() error {
		if after := network.state(t); after != before {
			return errors.New("the network is\n" + after + "\nand was\n" + before)
		}
		return nil
	})
}

// state returns the network's interfaces and packet filters.
func (n *Network) state(t *testing.T) string {
	t.Helper()
	links, err := n.lan.Handle.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	var tables []byte
	err = hosts.Within(n.lan.NS, func() (err error) {
		tables, err = exec.Command("nft", "list", "tables").Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ") + "\n" + string(tables)
}
