package config

import (
	"net/netip"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// GatewayClass is the name of kedge's own IngressClass and GatewayClass.
const GatewayClass = "kedge"

// traefik is k3s's ingress controller. Its name in Cluster.Disable disables the gateway.
const traefik = "traefik"

// GatewaySettings are those of the gateway, the same on all nodes.
type GatewaySettings struct {
	// IngressClasses need not have an object.
	IngressClasses []string `key:"gateway-ingress-classes" role:"server" usage:"name of an IngressClass that the gateway serves in addition to its own class kedge, such as traefik or nginx"`
	// TrustedProxies are CIDRs and addresses: see TrustedPrefixes.
	TrustedProxies []string `key:"gateway-trusted-proxies" role:"server" usage:"range of addresses of proxies in front of the gateway. The gateway believes what they say about the client: in X-Forwarded headers, and with gateway-proxy-protocol in the PROXY protocol"`
	ProxyProtocol  bool     `key:"gateway-proxy-protocol" role:"server" usage:"connections from gateway-trusted-proxies to the gateway begin with the PROXY protocol"`
	AccessLog      bool     `key:"gateway-access-log" role:"server" usage:"log each request that the gateway answers"`
	// Ports are further ports than 80 and 443: see SharedPorts.
	Ports      []string `key:"gateway-ports" role:"server" usage:"port that Gateways without an address of their own may use in addition to 80 and 443. The oldest one has it"`
	ShareHosts bool     `key:"gateway-share-hosts" role:"server" usage:"let Ingresses and Gateways of all namespaces serve the same host names together, for a cluster with one tenant. By default, a host belongs to the namespace that had it first"`
	// BackendRanges are CIDRs and addresses: see BackendPrefixes.
	BackendRanges []string `key:"gateway-backend-ranges" role:"server" usage:"range of addresses outside the cluster to which the gateway may connect for all namespaces, if an EndpointSlice lists them. Addresses of nodes, pods, Services and LoadBalancerPools are never among them"`
	// ACMEServer is empty for Let's Encrypt.
	ACMEServer string `key:"gateway-acme-server" role:"server" usage:"URL of the directory of the ACME authority from which the gateway gets certificates. The default is Let's Encrypt"`
}

// SharedPorts returns Ports parsed. It is for a validated Config.
func (g *GatewaySettings) SharedPorts() []uint16 {
	var ports []uint16
	for _, text := range g.Ports {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			panic(err)
		}
		ports = append(ports, uint16(port))
	}
	return ports
}

// BackendRanges is the key of GatewaySettings.BackendRanges, for messages.
const BackendRanges = "gateway-backend-ranges"

// TrustedPrefixes returns TrustedProxies parsed. It is for a validated Config.
func (g *GatewaySettings) TrustedPrefixes() []netip.Prefix { return parseRanges(g.TrustedProxies) }

// BackendPrefixes returns BackendRanges parsed. It is for a validated Config.
func (g *GatewaySettings) BackendPrefixes() []netip.Prefix { return parseRanges(g.BackendRanges) }

func parseRanges(texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range texts {
		prefix, err := parseRange(text)
		if err != nil {
			panic(err)
		}
		prefixes = append(prefixes, prefix)
	}
	return prefixes
}

// parseRange parses a range, or an address, which is a range of one.
func parseRange(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	return netip.ParsePrefix(text)
}

// gateway checks the settings of the gateway.
func (v *validator) gateway(g *GatewaySettings) {
	for _, name := range g.IngressClasses {
		switch {
		case name == GatewayClass:
			v.fault("gateway-ingress-classes", "the gateway always serves its own class %s: remove %[1]s from the list", name)
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			v.fault("gateway-ingress-classes", "invalid name of an IngressClass %q: use a name such as traefik", name)
		}
	}
	v.ranges("gateway-trusted-proxies", g.TrustedProxies)
	v.ranges(BackendRanges, g.BackendRanges)
	if u, err := url.Parse(g.ACMEServer); g.ACMEServer != "" && (err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "") {
		v.fault("gateway-acme-server", "invalid URL %q: use https://HOST/PATH, such as https://acme-staging-v02.api.letsencrypt.org/directory", g.ACMEServer)
	}
	if g.ProxyProtocol && len(g.TrustedProxies) == 0 {
		v.fault("gateway-proxy-protocol", "is set, and gateway-trusted-proxies is not: set gateway-trusted-proxies to the addresses that the PROXY protocol comes from")
	}
}

// gatewayPorts checks the further ports of the gateway. from and to are the range of NodePorts.
func (v *validator) gatewayPorts(ports []string, from, to int) {
	for _, text := range ports {
		switch port, err := strconv.Atoi(text); {
		case err != nil || port < 1 || port > 65535:
			v.fault("gateway-ports", "invalid port %q: use a number from 1 to 65535", text)
		case port == 80 || port == 443:
			v.fault("gateway-ports", "port %d is always there, with protocols that all namespaces can use beside each other: remove %[1]d from the list", port)
		case port >= from && port <= to:
			v.fault("gateway-ports", "port %d is in service-node-port-range %d-%d: use another port", port, from, to)
		}
	}
}

// ranges checks a list of ranges and addresses.
func (v *validator) ranges(key string, texts []string) {
	for _, text := range texts {
		prefix, err := parseRange(text)
		switch {
		case err != nil:
			v.fault(key, "invalid range of addresses %q: use ADDRESS/BITS, such as 192.0.2.0/24, or one address", text)
		case prefix != prefix.Masked():
			v.fault(key, "%s has bits beyond its prefix; did you mean %s?", prefix, prefix.Masked())
		case prefix.Addr().Is4In6():
			v.fault(key, "%s is an IPv4 range in the form of IPv6: write it as an IPv4 range", prefix)
		}
	}
}
