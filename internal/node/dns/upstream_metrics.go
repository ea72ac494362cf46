// Follows github.com/coredns/coredns v1.15.0, plugin/metrics/setup.go.

package dns

import (
	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
)

// measure adds CoreDNS's handler that counts and times the queries of a server block. The
// kubelet's port serves the metrics, so nothing is opened here.
//
//upstream:follows github.com/coredns/coredns/plugin/metrics/setup.go setup parse
func measure(c *caddy.Controller) error {
	for c.Next() {
		if c.NextArg() {
			return c.ArgErr()
		}
	}
	handler := metrics.New("")
	for _, zone := range plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys) {
		handler.AddZone(zone)
	}
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		handler.Next = next
		return handler
	})
	return nil
}
