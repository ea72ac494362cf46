package harness

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// link has the faults of a host's link to its network. They are made at the network's end, where the
// host cannot see them: its carrier stays up, as on a machine behind a modem.
type link struct {
	// cutFrom and cutTo tell whether packets from and to the host are dropped.
	cutFrom, cutTo bool
	// loss is the percentage of packets that get lost.
	loss  int
	relay *relay
}

// CutLink drops all packets from and to the host until HealLink is called.
func (h *Host) CutLink() {
	h.t.Helper()
	h.link.cutFrom, h.link.cutTo = true, true
	h.filter()
}

// CutLinkFrom drops all packets from the host until HealLink is called. Those to the host arrive.
func (h *Host) CutLinkFrom() {
	h.t.Helper()
	h.link.cutFrom = true
	h.filter()
}

// CutLinkTo drops all packets to the host until HealLink is called. Those from the host arrive.
func (h *Host) CutLinkTo() {
	h.t.Helper()
	h.link.cutTo = true
	h.filter()
}

// HealLink undoes CutLink, CutLinkFrom and CutLinkTo.
func (h *Host) HealLink() {
	h.t.Helper()
	h.link.cutFrom, h.link.cutTo = false, false
	h.filter()
}

// filters tells whether the link loses packets.
func (l *link) filters() bool { return l.cutFrom || l.cutTo || l.loss > 0 }

// LosePackets drops this percentage of packets from the host, at random, and the same percentage of
// packets to it.
func (h *Host) LosePackets(percent int) {
	h.t.Helper()
	h.link.loss = percent
	h.filter()
}

// filter writes the packet filter for the host's faults.
func (h *Host) filter() {
	h.t.Helper()
	port := hosts.Port(h.number)
	verdict := func(cut bool) string {
		switch {
		case cut:
			return "drop"
		case h.link.loss > 0:
			return fmt.Sprintf("numgen random mod 100 < %d drop", h.link.loss)
		}
		return "accept"
	}
	rules := "table bridge " + port + "\ndelete table bridge " + port + "\n"
	if h.link.filters() {
		rules += "table bridge " + port + ` {
	chain from {
		type filter hook prerouting priority filter
		iifname "` + port + `" ` + verdict(h.link.cutFrom) + `
	}
	chain to {
		type filter hook postrouting priority filter
		oifname "` + port + `" ` + verdict(h.link.cutTo) + `
	}
}
`
	}
	if err := nft(h.network.lan.NS, rules); err != nil {
		h.t.Fatalf("filter the link of %s: %v", h.Name, err)
	}
}

// nft runs nft with rules in the network namespace ns.
func nft(ns netns.NsHandle, rules string) error {
	return hosts.Within(ns, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("run nft (of Debian's package nftables): %w: %s", err, output)
		}
		return nil
	})
}

// LimitBandwidth limits the link to this many kilobits per second in each direction. 0 means no limit.
func (h *Host) LimitBandwidth(kilobits int) {
	h.t.Helper()
	err := limitBandwidth(h.network.lan.NS, hosts.Port(h.number), kilobits)
	if err == nil {
		err = limitBandwidth(h.live.NS(), hostInterface, kilobits)
	}
	if err != nil {
		h.t.Fatalf("limit the bandwidth of %s: %v", h.Name, err)
	}
}

// limitBandwidth limits what an interface sends: see tc-tbf(8).
func limitBandwidth(ns netns.NsHandle, name string, kilobits int) error {
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return err
	}
	qdiscs, err := handle.QdiscList(link)
	if err != nil {
		return err
	}
	for _, old := range qdiscs {
		if old.Type() == "tbf" {
			if err := handle.QdiscDel(old); err != nil {
				return fmt.Errorf("remove old limit: %w", err)
			}
		}
	}
	if kilobits == 0 {
		return nil
	}
	rate := uint64(kilobits) * 1000 / 8
	// The burst is what may be sent in one tick of the kernel, and at least some packets.
	burst := uint32(max(rate/100, 10*1514))
	return handle.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Buffer:     netlink.Xmittime(rate, burst),
		// Packets for a tenth of a second are queued, the rest is dropped.
		Limit: burst + uint32(rate/10),
	})
}

// DelayPackets delays each packet from and to the host.
func (h *Host) DelayPackets(delay time.Duration) {
	h.t.Helper()
	if h.link.relay == nil {
		relay, err := h.network.newRelay(h.number)
		if err != nil {
			h.t.Fatalf("delay packets of %s: %v", h.Name, err)
		}
		h.link.relay = relay
	}
	h.link.relay.delay.Store(int64(delay))
}

// mendLink removes from the network what the faults of a host's link have made there.
func (h *Host) mendLink() error {
	var errs []error
	if h.link.relay != nil {
		errs = append(errs, h.link.relay.close())
	}
	if h.link.filters() {
		errs = append(errs, nft(h.network.lan.NS, "delete table bridge "+hosts.Port(h.number)+"\n"))
	}
	return errors.Join(errs...)
}
