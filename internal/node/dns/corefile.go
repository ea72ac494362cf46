package dns

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	mdns "github.com/miekg/dns"
)

// corefile is what CoreDNS's configuration is made of.
type corefile struct {
	// source is the name under which the records are found; see Plugins.
	source    string
	addresses []netip.Addr
	port      int
	domain    string
	// admitted are the only addresses that are answered; empty means all, for
	// when the packet filter sees to it.
	admitted []netip.Prefix
	// upstreams are the nameservers for names outside the cluster, as
	// ADDRESS:PORT; none means such names are not found.
	upstreams []string
	// folder has the only files that the user's parts may name.
	folder string
}

// render returns the Corefile with the user's own parts, the data of the
// ConfigMap coredns-custom: *.override goes into kedge's server block, *.server
// are further ones, and other keys mean nothing, as with k3s. An error says
// which part is wrong, and never what is in a file.
func (c corefile) render(custom map[string]string) (string, error) {
	var overrides, servers bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(custom)) {
		var err error
		switch {
		case strings.HasSuffix(key, ".override"):
			err = c.override(&overrides, key, custom[key])
		case strings.HasSuffix(key, ".server"):
			err = c.servers(&servers, key, custom[key])
		}
		if err != nil {
			return "", fmt.Errorf("part %s: %w", key, err)
		}
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, ".:%d {\n", c.port)
	c.prelude(&out)
	if !overridden(overrides.Bytes(), "errors") {
		fmt.Fprintf(&out, "\terrors\n")
	}
	fmt.Fprintf(&out, "\t%s %s %s in-addr.arpa ip6.arpa {\n", sharedDirective, c.source, c.domain)
	fmt.Fprintf(&out, "\t\tpods insecure\n\t\tfallthrough in-addr.arpa ip6.arpa\n\t\tttl 30\n\t}\n")
	if !overridden(overrides.Bytes(), "cache") {
		// The cluster's own names are in memory anyway: caching them here would
		// only make a new Service stay unknown for a while, as in kubeadm's.
		fmt.Fprintf(&out, "\tcache 30 {\n\t\tdisable success %[1]s\n\t\tdisable denial %[1]s\n\t}\n", c.domain)
	}
	if !overridden(overrides.Bytes(), "loadbalance") {
		fmt.Fprintf(&out, "\tloadbalance\n")
	}
	out.Write(overrides.Bytes())
	if len(c.upstreams) > 0 {
		// A host asks its nameservers in the order of its resolv.conf, and with
		// an internal and a public one that matters. After the user's parts,
		// whose forward is asked first then.
		fmt.Fprintf(&out, "\tforward . %s {\n\t\tpolicy sequential\n\t\tmax_concurrent 1000\n\t}\n", strings.Join(c.upstreams, " "))
	}
	fmt.Fprintf(&out, "}\n")
	out.Write(servers.Bytes())
	return out.String(), nil
}

// prelude writes what every server block begins with: where it listens and
// whom it answers.
func (c corefile) prelude(out *bytes.Buffer) {
	out.WriteString("\tbind")
	for _, address := range c.addresses {
		out.WriteString(" " + address.String())
	}
	out.WriteString("\n")
	if len(c.admitted) == 0 {
		return
	}
	out.WriteString("\tacl {\n\t\tallow net")
	for _, prefix := range c.admitted {
		out.WriteString(" " + prefix.String())
	}
	out.WriteString("\n\t\tdrop\n\t}\n")
}

// overridden reports whether rendered directives contain the named one.
func overridden(rendered []byte, directive string) bool {
	return slices.ContainsFunc(bytes.Split(rendered, []byte("\n")), func(line []byte) bool {
		rest, found := bytes.CutPrefix(line, []byte("\t"+directive))
		return found && (len(rest) == 0 || rest[0] == ' ')
	})
}

// upstreams returns the nameservers of a resolv.conf as ADDRESS:PORT, without
// those in excluded: the cluster's DNS as its own upstream would ask itself.
// Link-local ones are left out too, as the forward plugin cannot keep their
// zone. A missing file means none.
func upstreams(path string, excluded []netip.Addr) []string {
	conf, err := mdns.ClientConfigFromFile(path)
	if err != nil {
		return nil
	}
	var found []string
	for _, server := range conf.Servers {
		address, err := netip.ParseAddr(server)
		if err != nil || address.Zone() != "" || slices.Contains(excluded, address.Unmap()) {
			continue
		}
		found = append(found, netip.AddrPortFrom(address.Unmap(), 53).String())
	}
	return slices.Compact(found)
}
