package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/forward"
	mdns "github.com/miekg/dns"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

const (
	// nameserverPatience is how long a nameserver of the host may take to answer a probe.
	nameserverPatience = 2 * time.Second
	// nameserverInterval is how often silent nameservers are probed, until one answers.
	nameserverInterval = 5 * time.Second
)

// nameservers notices that no nameserver of the host answers, or that the host has none, so that this is told once.
// CoreDNS's plugin errors tells it for each query, and clients ask again and again.
type nameservers struct {
	// failed receives the error of a query that got no answer. It has room for one.
	failed chan error

	mu sync.Mutex
	// addresses are asked by CoreDNS, as ADDRESS:PORT.
	addresses []string
}

func newNameservers() *nameservers { return &nameservers{failed: make(chan error, 1)} }

func (n *nameservers) set(addresses []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses = addresses
}

// follow probes the nameservers after a query without an answer. If none of them answers, follow reports it, and
// probes until one does. A query can also fail because only its own zone does not answer. That is no fault of this
// host. follow returns when ctx ends.
func (n *nameservers) follow(ctx context.Context, interval time.Duration) {
	for {
		var cause error
		select {
		case <-ctx.Done():
			return
		case cause = <-n.failed:
		}
		for fault := n.fault(ctx, cause); fault != nil && ctx.Err() == nil; fault = n.fault(ctx, cause) {
			component.Report(ctx, fault)
			if loop.Sleep(ctx, interval) != nil {
				return
			}
		}
		component.Report(ctx, nil)
	}
}

// errNone is why a query got no answer on a host without nameservers.
var errNone = errors.New("this host has no nameserver, so pods find no names outside the cluster: " +
	"add one to its resolv.conf, or set --resolv-conf to a file with nameservers")

// fault returns what is wrong with the nameservers, or nil if one of them answers. cause is why a query got no answer.
func (n *nameservers) fault(ctx context.Context, cause error) error {
	n.mu.Lock()
	addresses := n.addresses
	n.mu.Unlock()
	if len(addresses) == 0 {
		return errNone
	}
	question := new(mdns.Msg).SetQuestion(".", mdns.TypeNS)
	for _, address := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			client := mdns.Client{Net: network, Timeout: nameserverPatience}
			if _, _, err := client.ExchangeContext(ctx, question, address); err == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("no nameserver of this host answers (%s), so pods find no names outside the cluster: %w: "+
		"check the network, or set --resolv-conf to a file with nameservers that answer", strings.Join(addresses, ", "), cause)
}

// watchNameservers adds the handler of nameserversDirective, before that of forward.
func (p *Plugins) watchNameservers(c *caddy.Controller) error {
	c.Next()
	if !c.NextArg() {
		return c.ArgErr()
	}
	found, ok := p.sources.Load(c.Val())
	if !ok {
		return c.Errf("unknown source %q", c.Val())
	}
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		return forwarded{next, found.(*source).nameservers}
	})
	return nil
}

// forwarded handles the queries that go to the nameservers of the host.
type forwarded struct {
	next plugin.Handler
	*nameservers
}

// Name implements plugin.Handler.
func (forwarded) Name() string { return nameserversDirective }

// ServeDNS implements plugin.Handler. It takes over the error of a query that got no answer. The client still gets
// its SERVFAIL.
func (f forwarded) ServeDNS(ctx context.Context, w mdns.ResponseWriter, r *mdns.Msg) (int, error) {
	code, err := mdns.RcodeServerFailure, errNone
	if f.next != nil {
		code, err = plugin.NextOrFailure(f.Name(), f.next, ctx, w, r)
	}
	if !isSilence(err) {
		return code, err
	}
	select {
	case f.failed <- err:
	default: // follow has not yet looked at an earlier one
	}
	return code, nil
}

// isSilence tells whether an error says that there is no nameserver, or is one of the plugin forward that none has answered.
//
//upstream:relies-on github.com/coredns/coredns/plugin/forward/forward.go Forward.ServeDNS
func isSilence(err error) bool {
	var network net.Error
	return errors.Is(err, errNone) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, forward.ErrNoHealthy)
}
