// Follows github.com/coredns/coredns v1.15.0, plugin/kubernetes/setup.go.

package dns

import (
	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"

	// The plugins of CoreDNS that a Corefile may name. Left out are those that
	// open ports or end the process (prometheus, health, ready, pprof, loop, debug),
	// that reload by themselves, and those for other clouds and stores: the
	// whole bundle, core/plugin, does not build beside kedge's etcd modules.
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/any"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/chaos"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/header"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/local"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/minimal"
	_ "github.com/coredns/coredns/plugin/nsid"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/whoami"
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
