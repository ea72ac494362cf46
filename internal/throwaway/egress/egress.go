// Package egress is the way of a throw-away cluster to the outside. The nodes' TCP connections and DNS
// requests end in this process, which makes its own from the machine: see DECISIONS.md beside this
// folder. The keeper of a cluster calls it.
package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// dialTimeout limits how long a connection to the outside may take to open.
const dialTimeout = 30 * time.Second

// table is the nftables table in the network's own namespace.
const table = "kedge-egress"

// Config says which network gets a way to the outside.
type Config struct {
	// NS is the namespace of the network's bridge, and Bridge is the bridge's address there.
	NS     netns.NsHandle
	Bridge netip.Addr
	// Network is the cluster's own network, and Refused is the range of all clusters' networks.
	Network, Refused netip.Prefix
	// ResolvConf is the file that names the machine's DNS servers.
	ResolvConf string
	// Own returns the machine's own addresses.
	Own func() (map[netip.Addr]bool, error)
}

// Egress serves a network.
type Egress struct {
	cfg     Config
	tcp     net.Listener
	dnsTCP  net.Listener
	dnsUDP  net.PacketConn
	servers []*Server
	running sync.WaitGroup
}

// New opens the sockets, and sends the nodes' connections to them. It needs nft in PATH.
func New(ctx context.Context, cfg Config) (*Egress, error) {
	e := &Egress{cfg: cfg}
	err := hosts.Within(cfg.NS, func() (err error) {
		if e.tcp, err = net.Listen("tcp4", netip.AddrPortFrom(cfg.Bridge, 0).String()); err != nil {
			return err
		}
		dns := netip.AddrPortFrom(cfg.Bridge, 53).String()
		if e.dnsTCP, err = net.Listen("tcp4", dns); err != nil {
			return err
		}
		if e.dnsUDP, err = net.ListenPacket("udp4", dns); err != nil {
			return err
		}
		if err := noForwarding("/proc/sys/net/ipv4/ip_forward"); err != nil {
			return err
		}
		return e.redirect(ctx)
	})
	if err != nil {
		e.Close()
		return nil, fmt.Errorf("open the way of the cluster to the outside: %w", err)
	}
	e.servers = []*Server{Serve(e.tcp, MaxConnections, e.forward), Serve(e.dnsTCP, maxQueries, e.resolveTCP)}
	e.running.Go(e.resolveUDP)
	return e, nil
}

// redirect makes the kernel deliver connections of nodes to the outside to this process. It does not
// forward any packet.
func (e *Egress) redirect(ctx context.Context) error {
	nft, err := knftables.New(knftables.IPv4Family, table)
	if err != nil {
		return fmt.Errorf("use nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name: "out", Type: knftables.PtrTo(knftables.NATType), Hook: knftables.PtrTo(knftables.PreroutingHook),
		Priority: knftables.PtrTo(knftables.DNATPriority),
	})
	tx.Add(&knftables.Rule{Chain: "out", Rule: knftables.Concat(
		"ip saddr", e.cfg.Network, "ip daddr !=", e.cfg.Network, "ip protocol tcp redirect to", fmt.Sprintf(":%d", e.tcp.Addr().(*net.TCPAddr).Port))})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables rules: %w", err)
	}
	return nil
}

// noForwarding keeps the calling thread's network namespace from forwarding packets, such as UDP to another cluster.
// A new namespace has the setting of the machine, and Docker and kubelets turn it on there: devinet_init_net in
// net/ipv4/devinet.c.
func noForwarding(setting string) error {
	text, err := os.ReadFile(setting)
	if err == nil && strings.TrimSpace(string(text)) != "0" {
		err = os.WriteFile(setting, []byte("0"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("turn forwarding off: %w", err)
	}
	return nil
}

// Close ends all listening. Open connections end with the nodes.
func (e *Egress) Close() {
	for _, server := range e.servers {
		server.Close()
	}
	for _, closer := range []io.Closer{e.tcp, e.dnsTCP, e.dnsUDP} {
		if closer != nil {
			closer.Close()
		}
	}
	e.running.Wait()
}

// forward connects a node to where it wanted to go.
func (e *Egress) forward(conn net.Conn) {
	defer conn.Close()
	target, err := originalTarget(conn)
	if err != nil {
		return
	}
	out, err := e.dial(target)
	if err != nil {
		// A reset is the nearest to a refused connection.
		_ = conn.(*net.TCPConn).SetLinger(0)
		return
	}
	defer out.Close()
	Pipe(conn.(*net.TCPConn), out.(*net.TCPConn))
}

// errRefused says that nodes may not connect to an address.
var errRefused = errors.New("refused")

// dial connects to a target as the node would be seen by it: the machine itself sees an address of the
// cluster, and everybody else an address of the machine.
func (e *Egress) dial(target netip.AddrPort) (conn net.Conn, err error) {
	address := target.Addr().Unmap()
	// Services on the machine's loopback trust the machine's own users. A node has no route there, and
	// gets none by this process. Clouds give a machine's credentials to everybody on it who asks their
	// metadata service, and some only to root, which this process is. Clusters do not reach each other.
	if !address.IsGlobalUnicast() || host.IsMetadata(address) || e.cfg.Refused.Contains(address) {
		return nil, errRefused
	}
	own, err := e.cfg.Own()
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	if !own[address] {
		return dialer.Dial("tcp4", target.String())
	}
	err = hosts.Within(e.cfg.NS, func() error {
		conn, err = dialer.Dial("tcp4", target.String())
		return err
	})
	return conn, err
}

// originalTarget returns where a redirected connection was to go. See SO_ORIGINAL_DST in
// include/uapi/linux/netfilter_ipv4.h: the kernel returns a sockaddr_in.
func originalTarget(conn net.Conn) (target netip.AddrPort, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return target, err
	}
	var fault error
	err = raw.Control(func(fd uintptr) {
		// This is the only function of the library that returns 16 bytes or more.
		answer, err := unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
		if err != nil {
			fault = err
			return
		}
		b := answer.Multiaddr
		target = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
	})
	return target, errors.Join(err, fault)
}

// Pipe copies in both directions until both have ended.
func Pipe(a, b *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		oneWay(a, b)
	}()
	oneWay(b, a)
	<-done
}

func oneWay(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		// The other direction cannot go on either.
		to.Close()
		from.Close()
		return
	}
	_ = to.CloseWrite()
}

// OwnAddresses returns the addresses of the machine's interfaces.
func OwnAddresses() (map[netip.Addr]bool, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	own := map[netip.Addr]bool{}
	for _, address := range list {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil {
			own[prefix.Addr()] = true
		}
	}
	return own, nil
}
