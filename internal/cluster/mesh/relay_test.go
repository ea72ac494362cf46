package mesh

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// received is what a node gets from Relays.
type received struct {
	mu        sync.Mutex
	link      *Link
	datagrams map[ID][]string
	gone      []ID
}

func (r *received) Opened(link *Link) { r.link = link }
func (r *received) Closed(*Link)      {}

func (r *received) Received(_ *Link, from ID, datagram []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.datagrams[from] = append(r.datagrams[from], string(datagram))
}

func (r *received) Gone(_ *Link, node ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = append(r.gone, node)
}

// attach attaches a node.
func attach(ctx context.Context, t *testing.T, relay *Relay, name string) *received {
	t.Helper()
	node := &received{datagrams: map[ID][]string{}}
	near, far := net.Pipe()
	go func() { _ = relay.Attach(ctx, name, far) }()
	go func() { _ = Serve(ctx, netip.MustParseAddr("198.51.100.1"), near, node) }()
	synctest.Wait()
	if node.link == nil {
		t.Fatalf("node %s has no link", name)
	}
	return node
}

// TestRelay passes datagrams on between nodes, by streams and by UDP, and for nobody else.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		relay := NewRelay("server", DefaultPort, 1000)
		one, two := attach(ctx, t, relay, "one"), attach(ctx, t, relay, "two")
		want := func(what string, count int) {
			t.Helper()
			synctest.Wait()
			two.mu.Lock()
			defer two.mu.Unlock()
			if got := two.datagrams[IDOf("one")]; len(got) != count {
				t.Fatalf("after %s node two has the datagrams %q", what, got)
			}
		}
		one.link.Send(IDOf("two"), []byte("by stream"))
		want("a datagram", 1)
		one.link.Send(IDOf("three"), []byte("to nobody"))
		synctest.Wait()
		if len(one.gone) != 1 || one.gone[0] != IDOf("three") {
			t.Errorf("the Relay says that %v are gone", one.gone)
		}

		// UDP.
		address, stranger := netip.MustParseAddrPort("203.0.113.1:51820"), netip.MustParseAddrPort("203.0.113.66:51820")
		var sent [][]byte
		relay.UseUDP(func(to netip.AddrPort, packet []byte) {
			if to != address {
				t.Errorf("a packet of %d bytes goes to %s", len(packet), to)
			}
			sent = append(sent, packet)
		})
		relay.Packet(address, Wrap(KindSend, IDOf("two"), []byte("too early")))
		want("a datagram by UDP without a hello", 1)
		hello := one.link.Hello()
		relay.Packet(address, hello)
		if len(sent) != 1 || len(sent[0]) > len(hello) || !one.link.Answered(sent[0]) {
			t.Fatalf("the answer to a hello of %d bytes: %d", len(hello), len(sent))
		}
		if seen, usable := one.link.Seen(); seen != address || !usable {
			t.Errorf("the Relay has seen %s, usable: %t", seen, usable)
		}
		relay.Packet(address, Wrap(KindSend, IDOf("two"), []byte("by UDP")))
		want("a datagram by UDP", 2)

		// The Relay ignores the packets of a host that is no node.
		relay.Packet(stranger, hello)
		broken := bytes.Clone(one.link.Hello())
		broken[len(broken)-1] ^= 1
		relay.Packet(stranger, broken)
		relay.Packet(stranger, Wrap(KindSend, IDOf("two"), []byte("from a stranger")))
		relay.Packet(stranger, Wrap(KindDeliver, IDOf("two"), []byte("from a stranger")))
		for n := range len(hello) {
			relay.Packet(stranger, hello[:n])
		}
		want("packets of a stranger", 2)

		// An old address is not used any more.
		two.link.Send(IDOf("one"), []byte("by UDP"))
		synctest.Wait()
		if len(sent) != 2 {
			t.Errorf("%d packets were sent by UDP", len(sent))
		}
		time.Sleep(helloLasts + time.Second)
		two.link.Send(IDOf("one"), []byte("by stream"))
		synctest.Wait()
		if got := one.datagrams[IDOf("two")]; len(sent) != 2 || len(got) != 1 {
			t.Errorf("%d packets were sent by UDP, and %q by the stream", len(sent), got)
		}
	})
}

// TestRelayRate drops what a node sends beyond its rate.
func TestRelayRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		relay := NewRelay("server", DefaultPort, 1_000_000)
		one := attach(ctx, t, relay, "one")
		attach(ctx, t, relay, "two")
		begun := time.Now()
		for time.Since(begun) < 10*time.Second {
			for range 4 {
				one.link.Send(IDOf("two"), make([]byte, 1000))
			}
			time.Sleep(time.Millisecond)
		}
		passed, refused := relay.Passed()
		if passed < 9_000_000 || passed > 11_000_000 || refused < 20_000_000 {
			t.Errorf("%d bytes have passed, and %d have not", passed, refused)
		}
	})
}

// FuzzPackets takes what anybody can send to the UDP port, and what a captured node can send in its stream.
func FuzzPackets(f *testing.F) {
	_, private, err := NewKeys()
	if err != nil {
		f.Fatal(err)
	}
	knock := Knock{Message: Call, Number: 1, Addresses: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:1")}, Padding: 3}
	f.Add(knock.Seal(IDOf("one"), &private))
	f.Add(SealHello(IDOf("session"), &private, 1))
	f.Add(Wrap(KindSend, IDOf("one"), []byte("datagram")))
	f.Add(appendFrame(nil, frameData, IDOf("one"), []byte("datagram")))
	f.Fuzz(func(t *testing.T, packet []byte) {
		relay := NewRelay("server", DefaultPort, 0)
		relay.UseUDP(func(to netip.AddrPort, _ []byte) { t.Errorf("a packet goes to %s", to) })
		relay.Packet(netip.MustParseAddrPort("203.0.113.1:1"), packet)
		_, opened, err := OpenKnock(packet, func(ID) *Key { return &private })
		if err == nil && len(opened.Addresses) > MaxAddresses {
			t.Errorf("a knock has %d addresses", len(opened.Addresses))
		}
		_, _ = readFrame(bytes.NewReader(packet), make([]byte, MaxDatagram))
	})
}

// TestKnock reads what was written.
func TestKnock(t *testing.T) {
	public, private, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	otherPublic, otherPrivate, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	key, same := Shared(otherPublic, private), Shared(public, otherPrivate)
	if key != same {
		t.Fatal("two nodes have different keys")
	}
	knock := Knock{Message: Call, Number: 1 << 60, Addresses: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:7"), netip.MustParseAddrPort("[2001:db8::1]:65535")}, Padding: 100}
	packet := knock.Seal(IDOf("one"), &key)
	from, opened, err := OpenKnock(packet, func(ID) *Key { return &same })
	if err != nil || from != IDOf("one") || opened.Message != Call || opened.Number != knock.Number || len(opened.Addresses) != 2 ||
		opened.Addresses[0] != knock.Addresses[0] || opened.Addresses[1] != knock.Addresses[1] || opened.Padding != 100 {
		t.Errorf("%+v from %s (%v)", opened, from, err)
	}
	if small := (&Knock{Message: Ping, Number: 1}).Seal(IDOf("one"), &key); len(small) != KnockSize {
		t.Errorf("a knock has %d bytes, want %d", len(small), KnockSize)
	}
	packet[len(packet)-1] ^= 1
	if _, _, err := OpenKnock(packet, func(ID) *Key { return &same }); err == nil {
		t.Error("a knock that was changed is accepted")
	}
}
