// Follows github.com/coredns/coredns v1.15.0, plugin/kubernetes/setup.go.

package dns

import (
	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
)

// setUp adds a kubernetes handler, filled by fill, to the server block.
//
//upstream:follows github.com/coredns/coredns/plugin/kubernetes/setup.go setup kubernetesParse
func (p *Plugins) setUp(c *caddy.Controller, fill func(*source, *caddy.Controller, caddyfile.Dispenser, *kubernetes.Kubernetes) error) error {
	c.Next()
	if !c.NextArg() {
		return c.ArgErr()
	}
	found, ok := p.sources.Load(c.Val())
	if !ok {
		return c.Errf("unknown source %q", c.Val())
	}
	stanza := c.Dispenser // a copy, because ParseStanza consumes it
	handler, err := kubernetes.ParseStanza(c)
	if err != nil {
		return err
	}
	if c.Next() {
		return plugin.Error("kubernetes", plugin.ErrOnce)
	}
	if err := fill(found.(*source), c, stanza, handler); err != nil {
		return plugin.Error("kubernetes", err)
	}
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		handler.Next = next
		return handler
	})
	return nil
}
