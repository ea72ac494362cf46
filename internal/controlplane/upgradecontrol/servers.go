package upgradecontrol

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// versionPatience is how long a server may take to tell its version.
	versionPatience = 5 * time.Second
	// maxVersion is how many bytes its answer may have.
	maxVersion = 64 << 10
)

// baresOf asks servers that are no nodes for their version. addresses are those of all servers.
func baresOf(ctx context.Context, client *http.Client, addresses []string, all []*node) []bare {
	known, nodes := map[string]bool{}, 0
	for _, n := range all {
		for _, address := range n.addresses {
			known[address] = true
		}
		if n.role == server {
			nodes++
		}
	}
	// The API of a server may be advertised with an address that its Node does not have. Then
	// there are as many nodes as servers.
	if len(addresses) <= nodes {
		return nil
	}
	found := map[string]bare{}
	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil && !known[host] {
			found[address] = bare{address, versionAt(ctx, client, address)}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b bare) int { return strings.Compare(a.address, b.address) })
}

// versionAt returns the version of the server at an address, or "" if it does not tell it.
func versionAt(ctx context.Context, client *http.Client, address string) string {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/version", nil)
	if err != nil {
		return ""
	}
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var told struct {
		GitVersion string `json:"gitVersion"`
	}
	if response.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(response.Body, maxVersion)).Decode(&told) != nil {
		return ""
	}
	return told.GitVersion
}
