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

// corefile has the values for CoreDNS's configuration.
type corefile struct {
	// source is the key of the records in Plugins.sources.
	source    string
	addresses []netip.Addr
	port      int
	domain    string
	// admitted are the only addresses that get answers. If it is empty, all get answers and the
	// packet filter decides.
	admitted []netip.Prefix
	// upstreams are the nameservers for names outside the cluster, as ADDRESS:PORT. Without
	// upstreams such names are not found.
	upstreams []string
	// folder has the only files that the user's parts may name.
	folder string
}

// render returns the Corefile with the user's parts. custom is the data of the ConfigMap
// coredns-custom: *.override goes into kedge's server block, *.server are more server blocks, and
// other keys are ignored, as in k3s. The error names the wrong part and never shows the content of
// a file.
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
		// The records of the cluster are in memory anyway. To cache them would only delay the
		// answers for a new Service, as it does with kubeadm.
		fmt.Fprintf(&out, "\tcache 30 {\n\t\tdisable success %[1]s\n\t\tdisable denial %[1]s\n\t}\n", c.domain)
	}
	if !overridden(overrides.Bytes(), "loadbalance") {
		fmt.Fprintf(&out, "\tloadbalance\n")
	}
	out.Write(overrides.Bytes())
	// This comes after the user's parts, so that a forward of the user's is asked first.
	if !overridden(overrides.Bytes(), "errors") && !overridden(overrides.Bytes(), "forward") {
		fmt.Fprintf(&out, "\t%s %s\n", nameserversDirective, c.source)
	}
	if len(c.upstreams) > 0 {
		// A host asks its nameservers in the order of its resolv.conf. With an internal and a public
		// nameserver the order matters.
		fmt.Fprintf(&out, "\tforward . %s {\n\t\tpolicy sequential\n\t\tmax_concurrent 1000\n\t}\n", strings.Join(c.upstreams, " "))
	}
	fmt.Fprintf(&out, "}\n")
	out.Write(servers.Bytes())
	return out.String(), nil
}

// prelude writes the first directives of every server block: the addresses to listen on, the metrics,
// and the addresses that get answers.
func (c corefile) prelude(out *bytes.Buffer) {
	out.WriteString("\tbind")
	for _, address := range c.addresses {
		out.WriteString(" " + address.String())
	}
	out.WriteString("\n\t" + metricsDirective + "\n")
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

// upstreams returns the nameservers of a resolv.conf as ADDRESS:PORT. It leaves out those in excluded,
// because the cluster's DNS must not be its own upstream, and link-local ones, because the forward
// plugin cannot keep their zone. Without the file there are none.
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
