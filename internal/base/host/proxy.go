package host

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// SetNoProxy makes this process, with the image pulls and the API's webhook
// calls in it, reach the cluster's own addresses and names directly where
// HTTP_PROXY or HTTPS_PROXY is set: they are added to NO_PROXY. It is called
// before anything makes a request, as net/http reads these variables once.
func SetNoProxy(ranges []netip.Prefix, domain string, ips []netip.Addr) error {
	if firstEnv("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy") == "" {
		return nil
	}
	value := noProxy(firstEnv("NO_PROXY", "no_proxy"), ranges, domain, ips)
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
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
