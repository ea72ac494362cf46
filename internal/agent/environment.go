package agent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/network"
)

// Parts of this process read variables of its environment. The functions of this file
// are all that set any. They are called before those parts run.

// UseHelpers has everything in this process find kedge's own executables first.
func UseHelpers(bin string) error {
	return os.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// UseNoProxy has clients in this process reach the cluster's own addresses and names
// without the user's HTTP proxy, if there is one: net/http reads the variables once, at
// the first request.
func UseNoProxy(ranges []netip.Prefix, domain string, ips []netip.Addr) error {
	value := host.NoProxy(ranges, domain, ips)
	if value == "" {
		return nil
	}
	return errors.Join(os.Setenv("NO_PROXY", value), os.Setenv("no_proxy", value))
}

// useWireguardKey tells flannel where the node's key is.
func useWireguardKey() error { return os.Setenv("WIREGUARD_KEY_FILE", network.WireguardKey) }
