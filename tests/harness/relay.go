package harness

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

const (
	// relayQueue is how many packets may be on their way in each direction.
	relayQueue = 8192
	// maxFrame is larger than any Ethernet frame of a link, in bytes.
	maxFrame = 65536
)

// relay is between a host's link and its network, and forwards each packet after a delay. It has a
// bridge of its own with a TAP device, this process, and a TAP device on the network's bridge. It
// exists because not every kernel has netem.
type relay struct {
	// delay is in nanoseconds.
	delay   atomic.Int64
	network *Network
	bridge  netlink.Link
	taps    []*os.File
	done    sync.WaitGroup
}

// newRelay puts a relay without delay into the link of the host with number.
func (n *Network) newRelay(number int) (r *relay, err error) {
	r = &relay{network: n}
	defer func() {
		if err != nil {
			_ = r.close()
		}
	}()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprint("wire-", number)
	r.bridge = &netlink.Bridge{LinkAttrs: attrs}
	if err := n.lan.Handle.LinkAdd(r.bridge); err != nil {
		return r, fmt.Errorf("make bridge: %w", err)
	}
	if err := n.lan.Handle.LinkSetUp(r.bridge); err != nil {
		return r, fmt.Errorf("set bridge up: %w", err)
	}
	lan, err := n.lan.Handle.LinkByName(hosts.Bridge)
	if err != nil {
		return r, err
	}
	for i, master := range []netlink.Link{r.bridge, lan} {
		name := fmt.Sprint([]string{"near-", "far-"}[i], number)
		var tap *os.File
		err := hosts.Within(n.lan.NS, func() (err error) {
			tap, err = openTAP(name)
			return err
		})
		if err != nil {
			return r, err
		}
		r.taps = append(r.taps, tap)
		if err := n.plug(name, master); err != nil {
			return r, err
		}
	}
	if err := n.plug(hosts.Port(number), r.bridge); err != nil {
		return r, err
	}
	r.done.Go(func() { r.forward(r.taps[0], r.taps[1]) })
	r.done.Go(func() { r.forward(r.taps[1], r.taps[0]) })
	return r, nil
}

// plug makes the interface called name a port of a bridge.
func (n *Network) plug(name string, bridge netlink.Link) error {
	port, err := n.lan.Handle.LinkByName(name)
	if err != nil {
		return err
	}
	if err := n.lan.Handle.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("plug %s into %s: %w", name, bridge.Attrs().Name, err)
	}
	return n.lan.Handle.LinkSetUp(port)
}

// openTAP makes a TAP device in the thread's network namespace. It disappears when the file is closed.
func openTAP(name string) (*os.File, error) {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make TAP device: %w", err)
	}
	// This comes last: a file without its device cannot be polled.
	return os.NewFile(uintptr(fd), path), nil
}

// forward forwards packets from one device to the other, in order, until they are closed.
func (r *relay) forward(from, to *os.File) {
	type packet struct {
		due  time.Time
		data []byte
	}
	queue := make(chan packet, relayQueue)
	r.done.Go(func() {
		defer close(queue)
		buffer := make([]byte, maxFrame)
		for {
			length, err := from.Read(buffer)
			if err != nil {
				return
			}
			p := packet{time.Now().Add(time.Duration(r.delay.Load())), bytes.Clone(buffer[:length])}
			select {
			case queue <- p:
			default: // a full router drops packets
			}
		}
	})
	for p := range queue {
		time.Sleep(time.Until(p.due))
		_, _ = to.Write(p.data)
	}
}

// close ends the relay and leaves the host without a link.
func (r *relay) close() error {
	for _, tap := range r.taps {
		tap.Close()
	}
	r.done.Wait()
	if err := r.network.lan.Handle.LinkDel(r.bridge); err != nil {
		return fmt.Errorf("remove bridge: %w", err)
	}
	return nil
}
