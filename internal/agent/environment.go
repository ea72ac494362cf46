package agent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/network"
)

// Parts of this process read environment variables. Only the functions in this file set
// any. They are called before those parts run.

// UseHelpers makes this process find kedge's own executables in bin before the host's.
func UseHelpers(bin string) error {
	return os.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// UseNoProxy makes clients in this process reach the cluster's own addresses and names
// without the user's HTTP proxy, if there is one. It must be called before the first
// request, because net/http reads the variables only once.
func UseNoProxy(ranges []netip.Prefix, domain string, ips []netip.Addr) error {
	value := host.NoProxy(ranges, domain, ips)
	if value == "" {
		return nil
	}
	return errors.Join(os.Setenv("NO_PROXY", value), os.Setenv("no_proxy", value))
}

// useWireguardKey tells flannel the path of the node's key.
func useWireguardKey() error { return os.Setenv("WIREGUARD_KEY_FILE", network.WireguardKey) }
