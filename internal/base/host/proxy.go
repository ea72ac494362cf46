package host

import (
	"net/netip"
	"os"
	"slices"
	"strings"
)

// NoProxy returns the value of NO_PROXY with which this process, and image pulls and
// the API's calls of webhooks in it, reach the cluster's own addresses and names
// directly. It is empty if no HTTP_PROXY or HTTPS_PROXY is set.
func NoProxy(ranges []netip.Prefix, domain string, ips []netip.Addr) string {
	if firstEnv("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy") == "" {
		return ""
	}
	return noProxy(firstEnv("NO_PROXY", "no_proxy"), ranges, domain, ips)
}

func noProxy(old string, ranges []netip.Prefix, domain string, ips []netip.Addr) string {
	entries := strings.FieldsFunc(old, func(r rune) bool { return r == ',' || r == ' ' })
	add := func(entry string) {
		if !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	add("localhost")
	add("127.0.0.0/8")
	add(".svc")
	add("." + domain)
	for _, r := range ranges {
		add(r.String())
	}
	for _, ip := range ips {
		add(ip.String())
	}
	return strings.Join(entries, ",")
}

func firstEnv(names ...string) string {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			return value
		}
	}
	return ""
}
