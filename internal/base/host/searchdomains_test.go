package host

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameserver answers at an address of its own, until the test ends, that every name below a
// domain has an address, and that no other name exists.
func nameserver(t *testing.T, address, wildcard string) {
	t.Helper()
	listener, err := net.ListenPacket("udp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := listener.ReadFrom(buffer)
			if err != nil {
				return
			}
			var asked dnsmessage.Message
			if asked.Unpack(buffer[:n]) != nil || len(asked.Questions) != 1 {
				continue
			}
			question := asked.Questions[0]
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: asked.ID, Response: true, RCode: dnsmessage.RCodeNameError}, Questions: asked.Questions}
			if strings.HasSuffix(question.Name.String(), "."+wildcard+".") {
				answer.RCode = dnsmessage.RCodeSuccess
				if question.Type == dnsmessage.TypeA {
					answer.Answers = []dnsmessage.Resource{{
						Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class, TTL: 1},
						Body:   &dnsmessage.AResource{A: [4]byte{203, 0, 113, 7}},
					}}
				}
			}
			if text, err := answer.Pack(); err == nil {
				_, _ = listener.WriteTo(text, from)
			}
		}
	}()
}

// TestWildcardDomains checks that a search domain is named if every name below it has an address.
func TestWildcardDomains(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it listens on port 53")
	}
	const server = "127.77.53.1"
	nameserver(t, server, "wild.example")
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("nameserver " + server + "\nsearch fine.example wild.example.\n")
	faults := WildcardDomains(t.Context(), file, "cluster.local")
	if len(faults) != 1 || !strings.Contains(faults[0], "wild.example in "+file+" has an address for every name (203.0.113.7)") || !strings.Contains(faults[0], "resolv-conf") {
		t.Errorf("got %q", faults)
	}
	if checks := checkSearchDomains(t.Context(), file, "cluster.local"); len(checks) != 1 || checks[0].Result != Warn {
		t.Errorf("got %+v", checks)
	}
	write("nameserver " + server + "\nsearch fine.example\n")
	if checks := checkSearchDomains(t.Context(), file, "cluster.local"); len(checks) != 1 || checks[0].Result != OK {
		t.Errorf("got %+v", checks)
	}
	// Without an answer nothing is said.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	write("nameserver " + server + "\nsearch wild.example\n")
	if faults := WildcardDomains(ended, file, "cluster.local"); len(faults) != 0 {
		t.Errorf("got %q", faults)
	}
}

func TestSearchDomains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# search comment.example\nnameserver 192.0.2.1\ndomain a.example\nsearch b.example c.example. .\nnameserver 192.0.2.2\noptions ndots:2\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	servers, domains, err := searchDomains(file)
	if err != nil || !slices.Equal(servers, []string{"192.0.2.1", "192.0.2.2"}) || !slices.Equal(domains, []string{"b.example", "c.example"}) {
		t.Errorf("got %v, %v, %v", servers, domains, err)
	}
	if servers, domains, err := searchDomains(file + ".missing"); err != nil || len(servers)+len(domains) != 0 {
		t.Errorf("a missing file: %v, %v, %v", servers, domains, err)
	}
}
