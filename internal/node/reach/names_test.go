package reach

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// nameServer serves DNS at a free port of the loopback address, and returns the address.
func nameServer(t *testing.T, answer dns.HandlerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{{PacketConn: conn, Handler: answer}, {Listener: listener, Handler: answer}} {
		go func() { _ = server.ActivateAndServe() }()
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return conn.LocalAddr().String()
}

// record makes a line of a zone.
func record(t *testing.T, text string) dns.RR {
	t.Helper()
	r, err := dns.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestResolve(t *testing.T) {
	var overTCP atomic.Int32
	server := nameServer(t, func(w dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg).SetReply(question)
		switch q := question.Question[0]; {
		case q.Name == "db.data.svc.cluster.local." && q.Qtype == dns.TypeA:
			answer.Answer = []dns.RR{record(t, q.Name+" 5 A 10.43.7.7"), record(t, q.Name+" 5 A 10.43.7.8")}
		case q.Name == "six.shop.svc.cluster.local." && q.Qtype == dns.TypeAAAA:
			answer.Answer = []dns.RR{record(t, q.Name+" 5 AAAA fd00::7")}
		case q.Name == "alias.shop.svc.cluster.local." && q.Qtype == dns.TypeA:
			answer.Answer = []dns.RR{record(t, q.Name+" 5 CNAME www.example.com."), record(t, "www.example.com. 5 A 192.0.2.7")}
		case q.Name == "large.shop.svc.cluster.local." && w.LocalAddr().Network() == "udp":
			answer.Truncated = true
		case q.Name == "large.shop.svc.cluster.local." && q.Qtype == dns.TypeA:
			overTCP.Add(1)
			answer.Answer = []dns.RR{record(t, q.Name+" 5 A 10.43.7.9")}
		case strings.HasPrefix(q.Name, "empty."), strings.HasPrefix(q.Name, "six."):
		case strings.HasPrefix(q.Name, "broken."):
			answer.Rcode = dns.RcodeServerFailure
		default:
			answer.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(answer)
	})
	from := place{resolver: "search shop.svc.cluster.local svc.cluster.local\nnameserver 10.43.0.10\nnameserver 10.43.0.11\noptions ndots:5\n"}
	away := map[string]bool{}
	h := &Handler{dial: func(ctx context.Context, p place, network, address string) (net.Conn, error) {
		if p != from || !strings.HasPrefix(address, "10.43.0.1") {
			t.Errorf("a question to %s", address)
		}
		if away[address] {
			return nil, os.ErrDeadlineExceeded
		}
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
	for name, test := range map[string]struct {
		away  []string
		addrs []string
		asked []string
	}{
		"db.data": {nil, []string{"10.43.7.7", "10.43.7.8"}, []string{"db.data.shop.svc.cluster.local. NXDOMAIN", "db.data.svc.cluster.local. "}},
		"six":     {nil, []string{"fd00::7"}, []string{"six.shop.svc.cluster.local. "}},
		"alias":   {nil, []string{"192.0.2.7"}, []string{"alias.shop.svc.cluster.local. "}},
		"large":   {nil, []string{"10.43.7.9"}, []string{"large.shop.svc.cluster.local. "}},
		"nobody":  {nil, nil, []string{"nobody.shop.svc.cluster.local. NXDOMAIN", "nobody.svc.cluster.local. NXDOMAIN", "nobody. NXDOMAIN"}},
		"empty":   {nil, nil, []string{"empty.shop.svc.cluster.local. no address", "empty.svc.cluster.local. no address", "empty. no address"}},
		"broken":  {nil, nil, []string{"broken.shop.svc.cluster.local. SERVFAIL", "broken.shop.svc.cluster.local. SERVFAIL"}},
		"large.":  {[]string{"10.43.0.10:53", "10.43.0.11:53"}, nil, []string{"large. no answer", "large. no answer"}},
		"alias.shop.svc.cluster.local.": {[]string{"10.43.0.10:53"}, []string{"192.0.2.7"}, []string{
			"alias.shop.svc.cluster.local. no answer", "alias.shop.svc.cluster.local. "}},
	} {
		clear(away)
		for _, address := range test.away {
			away[address] = true
		}
		found := h.resolve(t.Context(), from, name)
		var addrs, asked []string
		for _, a := range found.Addresses {
			addrs = append(addrs, a.String())
		}
		for _, a := range found.Asked {
			asked = append(asked, a.Name+" "+a.Error)
		}
		if !slices.Equal(addrs, test.addrs) || !slices.Equal(asked, test.asked) {
			t.Errorf("%s: %q after %q, want %q after %q", name, addrs, asked, test.addrs, test.asked)
		}
	}
	if overTCP.Load() != 1 {
		t.Errorf("%d questions came by TCP, want 1", overTCP.Load())
	}
	if found := h.resolve(t.Context(), place{resolver: "search shop\n"}, "db"); len(found.Asked) > 0 {
		t.Errorf("a pod without name servers: %+v", found)
	}
}

// TestFromPod follows a name to a connection.
func TestFromPod(t *testing.T) {
	server := nameServer(t, func(w dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg).SetReply(question)
		answer.Answer = []dns.RR{record(t, question.Question[0].Name+" 5 A 10.43.7.7")}
		_ = w.WriteMsg(answer)
	})
	h, dialed := handler()
	h.pods = func(context.Context, string, string) (place, error) {
		return place{netns: "netns-of-web", resolver: "nameserver 10.43.0.10\n"}, nil
	}
	connect := h.dial
	h.dial = func(ctx context.Context, from place, network, address string) (net.Conn, error) {
		if address == "10.43.0.10:53" {
			return new(net.Dialer).DialContext(ctx, network, server)
		}
		return connect(ctx, from, network, address)
	}
	answer, err := h.fromPod(t.Context(), Question{Namespace: "shop", Pod: "web", Host: "db", Port: 80})
	if err != nil || answer.ends() != "connected [connected silent]" || answer.Targets[0].Address != netip.MustParseAddrPort("10.43.7.7:80") {
		t.Errorf("%+v, %v", answer, err)
	}
	if len(dialed.all) != 3 {
		t.Errorf("connected to %v", dialed.all)
	}
}
