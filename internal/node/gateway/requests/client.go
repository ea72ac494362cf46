package requests

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// client is who sends a request, as far as it can be believed.
type client struct {
	// peer is the other end of the connection.
	peer netip.Addr
	// address is the peer, or the client that trusted proxies have named.
	address netip.Addr
	// proto is "http" or "https": what the client speaks.
	proto string
	// trusted says that the peer is a proxy whose headers are believed.
	trusted bool
}

// clientOf returns who sends a request. The ranges are those of trusted proxies.
func clientOf(r *http.Request, trusted []netip.Prefix) client {
	c := client{proto: "http"}
	if r.TLS != nil {
		c.proto = "https"
	}
	if address, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		c.peer = address.Addr().Unmap().WithZone("")
	}
	c.address = c.peer
	if c.trusted = within(c.peer, trusted); !c.trusted {
		return c
	}
	// Each proxy appends the address of its client. So the last one that is not a trusted
	// proxy's is the client's. What stands before it, anybody may have written.
	chain := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for i := len(chain) - 1; i >= 0; i-- {
		address, is := parseAddress(strings.TrimSpace(chain[i]))
		if !is {
			break
		}
		c.address = address
		if !within(address, trusted) {
			break
		}
	}
	switch proto := strings.ToLower(r.Header.Get("X-Forwarded-Proto")); proto {
	case "http", "https":
		c.proto = proto
	}
	return c
}

// network returns what counts as one client: an IPv4 address, or a network of IPv6 with 64 bits,
// which is the least that anybody has.
func (c *client) network() string {
	if c.address.Is6() {
		return netip.PrefixFrom(c.address, 64).Masked().String()
	}
	return c.address.String()
}

// parseAddress reads an address, also with a port.
func parseAddress(text string) (netip.Addr, bool) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap(), true
	}
	if address, err := netip.ParseAddrPort(text); err == nil {
		return address.Addr().Unmap(), true
	}
	return netip.Addr{}, false
}

func within(address netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// forwarded puts into the header of a request where it comes from. What clients that are not
// trusted say about it is removed.
func (c *client) forwarded(h http.Header, host, publicPort string) {
	if !c.trusted {
		maps.DeleteFunc(h, func(name string, _ []string) bool { return isForwarding(name) })
	}
	peer := c.peer.String()
	address := peer
	if c.address != c.peer {
		address = c.address.String()
	}
	// All values are in one array.
	values := make([]string, 0, 5)
	set := func(name, value string) {
		at := len(values)
		values = append(values, value)
		h[name] = values[at : at+1 : at+1]
	}
	if before := h["X-Forwarded-For"]; len(before) > 0 {
		set("X-Forwarded-For", strings.Join(before, ", ")+", "+peer)
	} else {
		set("X-Forwarded-For", peer)
	}
	set("X-Forwarded-Proto", c.proto)
	if len(h["X-Forwarded-Host"]) == 0 {
		set("X-Forwarded-Host", host)
	}
	if len(h["X-Forwarded-Port"]) == 0 {
		set("X-Forwarded-Port", publicPort)
	}
	set("X-Real-Ip", address)
}

// isForwarding tells whether a header says where a request comes from, or could be taken for its length. Many servers cannot
// tell an underscore in a name from a hyphen.
func isForwarding(name string) bool {
	if name == "Forwarded" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
		return true
	}
	if strings.IndexByte(name, '_') < 0 {
		return false
	}
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return name == "x-real-ip" || name == "content-length" || name == "transfer-encoding" || strings.HasPrefix(name, "x-forwarded-")
}
