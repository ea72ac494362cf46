package policy

import (
	"context"
	"fmt"
	"github.com/prometheus/client_golang/prometheus"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// BenchmarkNode measures transactions on a full node: 110 pods in 100 groups, each of which lets
// 2,000 addresses in. Run it with -benchtime 10x.
func BenchmarkNode(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root for a network namespace")
	}
	const pods, groups, members = 110, 100, 2000
	update := netpolicy.Update{Whole: true, Active: true, Sets: map[string]*netpolicy.Change{"all": {}}, Groups: map[string]*netpolicy.Group{}, Pods: map[string]*netpolicy.Pod{}}
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}) }
	for i := range members {
		update.Sets["all"].Add = append(update.Sets["all"].Add, address(i))
	}
	for i := range groups {
		update.Groups[fmt.Sprint(i)] = &netpolicy.Group{Policies: []string{fmt.Sprint(i)}, Rules: []netpolicy.Rule{
			{Sets: []string{"all"}, Ports: []netpolicy.Ports{{Protocol: 6, First: 80, Last: 80}}},
			{Blocks: []netpolicy.Block{{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}},
		}}
	}
	var sandboxes []netpolicy.Sandbox
	for i := range pods {
		name := fmt.Sprint(i)
		update.Pods["ns/"+name] = &netpolicy.Pod{UID: name, Ingress: fmt.Sprint(i % groups)}
		sandboxes = append(sandboxes, netpolicy.Sandbox{ID: name, Namespace: "ns", Name: name, UID: name, Addresses: []netip.Addr{address(i)}})
	}
	fail := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ctx := context.Background()
	start := func() *Policy {
		p := New(Config{Metrics: prometheus.NewRegistry()})
		fail(p.apply(ctx, update))
		p.Running(ctx, sandboxes)
		if p.kernel == nil {
			b.Fatal("the rules could not be written")
		}
		return p
	}
	b.Cleanup(func() { fail(Cleanup(ctx)) })
	b.Run("start", func(b *testing.B) {
		for range b.N {
			start()
		}
	})
	p := start()
	b.Run("peer comes or goes", func(b *testing.B) {
		for i := range b.N {
			change := &netpolicy.Change{Add: []netip.Addr{address(members)}}
			if i%2 == 1 {
				change = &netpolicy.Change{Remove: change.Add}
			}
			fail(p.apply(ctx, netpolicy.Update{Active: true, Sets: map[string]*netpolicy.Change{"all": change}}))
		}
	})
	b.Run("pod moves", func(b *testing.B) {
		for i := range b.N {
			fail(p.apply(ctx, netpolicy.Update{Active: true, Pods: map[string]*netpolicy.Pod{"ns/0": {UID: "0", Ingress: fmt.Sprint(1 + i%2)}}}))
		}
	})
	b.Run("pod starts", func(b *testing.B) {
		for i := range b.N {
			s := sandboxes[1]
			s.ID = fmt.Sprint("again", i)
			p.Gone(ctx, sandboxes[1].ID)
			fail(p.Admit(ctx, s))
			sandboxes[1] = s
		}
	})
	if p.kernel == nil || len(p.kernel.stale) > 0 {
		b.Log("stale groups stay")
	}
}

// BenchmarkPackets measures how long a packet takes from one pod of a bridge to another: with no
// policy, with one group of 10 addresses, and on a full node. The kernel delivers it before the
// call returns.
func BenchmarkPackets(b *testing.B) {
	w := newWorld(b)
	w.one.do(func() { // nobody reads
		received, err := net.ListenPacket("udp", w.one.at(7000).String())
		must(b, err)
		b.Cleanup(func() { received.Close() })
	})
	tell := func(groups, members int) {
		update := netpolicy.Update{Active: true, Whole: true, Sets: map[string]*netpolicy.Change{"all": addresses(w.two)}, Groups: map[string]*netpolicy.Group{}, Pods: map[string]*netpolicy.Pod{}}
		for i := range members {
			update.Sets["all"].Add = append(update.Sets["all"].Add, netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}))
		}
		var sandboxes []netpolicy.Sandbox
		for i := range groups {
			name := fmt.Sprint(i)
			update.Groups[name] = groupOf(
				netpolicy.Rule{Blocks: []netpolicy.Block{{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}},
				netpolicy.Rule{Sets: []string{"all"}, Ports: []netpolicy.Ports{tcp(80, 80), udp(7000, 7000)}},
			)
			update.Pods["ns/"+name] = &netpolicy.Pod{UID: name, Ingress: name, Egress: name}
			sandboxes = append(sandboxes, netpolicy.Sandbox{ID: name, Namespace: "ns", Name: name, UID: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 98, 0, byte(i)})}})
		}
		if groups > 0 {
			one := w.one.sandbox()
			sandboxes = append(sandboxes, one)
			update.Pods["ns/pod1"] = w.one.pod("0", "")
		}
		w.policy = w.newPolicy()
		must(b, w.policy.apply(b.Context(), update))
		w.policy.Running(b.Context(), sandboxes)
	}
	for _, size := range []struct{ groups, members int }{{0, 0}, {1, 10}, {110, 2000}} {
		tell(size.groups, size.members)
		b.Run(fmt.Sprintf("%d groups of %d", size.groups, size.members), func(b *testing.B) {
			conn := w.two.dial("udp", w.one.at(7000), longEnough)
			defer conn.Close()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := cpuTime(b)
			for b.Loop() {
				if _, err := conn.Write([]byte("hello")); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime returns the processor time of this thread in nanoseconds. Other load of the machine
// changes it little.
func cpuTime(b *testing.B) int64 {
	var usage unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}
