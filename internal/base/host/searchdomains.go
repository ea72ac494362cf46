package host

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// askDomain limits how long the question about one search domain may take.
const askDomain = 3 * time.Second

// WildcardDomains returns what is wrong with the search domains in a resolv.conf: a text for
// each below which every name has an address. A name of the cluster such as
// app.default.svc.cluster.local has fewer than five dots, so pods try it with each search
// domain first (ndots:5), and the answer of the wildcard wins. WildcardDomains asks the
// nameservers in the file for one name below each domain that cannot exist. It returns nothing
// if they do not answer.
func WildcardDomains(ctx context.Context, file, clusterDomain string) []string {
	servers, domains, err := searchDomains(file)
	if err != nil || len(servers) == 0 {
		return nil // the kubelet and the cluster's DNS say so
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(servers[0], "53"))
	}}
	var faults []string
	for _, domain := range domains {
		if address := wildcard(ctx, resolver, clusterDomain, domain); address != "" {
			faults = append(faults, fmt.Sprintf("the search domain %s in %s has an address for every name (%s). "+
				"In pods, names of the cluster such as app.default.svc.%s lead to that address. "+
				"Remove the domain from the file, or set resolv-conf to a file without it", domain, file, address, clusterDomain))
		}
	}
	return faults
}

// wildcard returns the address of a name of the cluster with a search domain behind it, or an
// empty text if it has none. The name is random, so nothing else has it.
func wildcard(ctx context.Context, resolver *net.Resolver, clusterDomain, domain string) string {
	ctx, cancel := context.WithTimeout(ctx, askDomain)
	defer cancel()
	label := make([]byte, 8)
	// crypto/rand never returns an error: it ends the process instead.
	_, _ = rand.Read(label)
	addresses, err := resolver.LookupHost(ctx, "kedge-"+hex.EncodeToString(label)+".default.svc."+clusterDomain+"."+domain+".")
	if err != nil || len(addresses) == 0 {
		return ""
	}
	return addresses[0]
}

// searchDomains returns the nameservers and the search domains in a resolv.conf. As for the C
// library, the last list of search domains counts, and a missing file is an empty one.
func searchDomains(file string) (servers, domains []string, err error) {
	content, err := datadir.ReadText(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read search domains: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			servers = append(servers, fields[1])
		case "search", "domain":
			domains = nil
			for _, domain := range fields[1:] {
				if domain = strings.Trim(domain, "."); domain != "" {
					domains = append(domains, domain)
				}
			}
		}
	}
	return servers, domains, lines.Err()
}

// checkSearchDomains is a line of `kedge check-config` about the search domains.
func checkSearchDomains(ctx context.Context, file, clusterDomain string) []Check {
	if file == "" {
		return nil
	}
	check := Check{Group: "host", Name: "search domains", Result: OK, Detail: "none has a wildcard"}
	if faults := WildcardDomains(ctx, file, clusterDomain); len(faults) > 0 {
		check.Result, check.Detail, check.Cost = Warn, "a wildcard", strings.Join(faults, "; ")
	}
	return []Check{check}
}
