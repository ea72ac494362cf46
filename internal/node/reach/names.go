package reach

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Name is how the DNS of a pod has answered.
type Name struct {
	// Servers are those of the pod's resolv.conf.
	Servers []string `json:"servers"`
	// Asked are the questions in their order. The last one was answered with the addresses, if there are any.
	Asked []Asked `json:"asked"`
	// Addresses are what the name leads to.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Asked is a question to a name server.
type Asked struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	// Error is such as NXDOMAIN, SERVFAIL or Unanswered, or empty.
	Error string `json:"error,omitempty"`
}

const (
	// Unanswered is the Error of a question to which no answer came.
	Unanswered = "no answer"
	// NoAddress is the Error of a name that exists and has no address.
	NoAddress = "no address"
	// NoSuchName is the Error of a name that does not exist.
	NoSuchName = "NXDOMAIN"
)

const (
	// namePatience is how long all questions may take.
	namePatience = 10 * time.Second
	// answerPatience is how long one answer may take.
	answerPatience = 2 * time.Second
)

// resolve asks for a name as the C library of a pod does: with the search list and ndots of its resolv.conf, one name server
// after the other.
func (h *Handler) resolve(ctx context.Context, from place, name string) *Name {
	ctx, cancel := context.WithTimeout(ctx, namePatience)
	defer cancel()
	found := &Name{}
	resolver, err := dns.ClientConfigFromReader(strings.NewReader(from.resolver))
	if err != nil {
		return found // no server can be asked
	}
	found.Servers = resolver.Servers
	for _, full := range resolver.NameList(name) {
		answered := false
		for _, server := range resolver.Servers {
			asked := Asked{Name: full, Server: server}
			found.Addresses, asked.Error = h.ask(ctx, from, net.JoinHostPort(server, resolver.Port), full)
			found.Asked = append(found.Asked, asked)
			if answered = asked.Error == "" || asked.Error == NoSuchName || asked.Error == NoAddress; answered {
				break
			}
		}
		if len(found.Addresses) > 0 || !answered {
			break
		}
	}
	return found
}

// ask asks a server for the addresses of a full name.
func (h *Handler) ask(ctx context.Context, from place, server, name string) ([]netip.Addr, string) {
	fault := NoAddress
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, err := h.exchange(ctx, from, "udp", server, name, kind)
		if err == nil && answer.Truncated {
			answer, err = h.exchange(ctx, from, "tcp", server, name, kind)
		}
		var refused net.Error
		switch {
		case errors.As(err, &refused) && refused.Timeout():
			return nil, Unanswered
		case err != nil:
			return nil, err.Error()
		case answer.Rcode != dns.RcodeSuccess:
			return nil, dns.RcodeToString[answer.Rcode]
		}
		if all := addresses(answer); len(all) > 0 {
			return all, ""
		}
	}
	return nil, fault
}

// exchange sends one question.
func (h *Handler) exchange(ctx context.Context, from place, network, server, name string, kind uint16) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	conn, err := h.dial(ctx, from, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	question := new(dns.Msg).SetQuestion(name, kind)
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, question, &dns.Conn{Conn: conn})
	return answer, err
}

// addresses returns the addresses of an answer, at the end of its aliases.
func addresses(answer *dns.Msg) (all []netip.Addr) {
	for _, record := range answer.Answer {
		var ip net.IP
		switch r := record.(type) {
		case *dns.A:
			ip = r.A
		case *dns.AAAA:
			ip = r.AAAA
		}
		if address, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, address.Unmap())
		}
	}
	return all
}
