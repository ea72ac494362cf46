// Command cni has all CNI plugins that kedge uses. It acts as the plugin by whose name it is called
// (bridge, host-local, loopback, portmap, bandwidth). One executable needs a quarter of the space of
// five. The plugin kedge-cni is a chain of them in one process, see package chain.
//
// Upstream's plugins are programs, which Go cannot import. scripts/cniplugins makes packages from them
// for the build.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/kedge-dev/kedge/cmd/helpers/cni/chain"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/bandwidth"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/bridge"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/hostlocal"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/loopback"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/portmap"
)

func init() {
	// Plugins change the network namespace of their thread, so main must stay on the first thread, the
	// thread group leader, as in upstream's plugins.
	//upstream:relies-on github.com/containernetworking/plugins/plugins/main/bridge/bridge.go init
	runtime.LockOSThread()
}

func main() {
	plugins := map[string]func(){
		"bandwidth":  bandwidth.Main,
		"bridge":     bridge.Main,
		"host-local": hostlocal.Main,
		"kedge-cni":  chain.Main,
		"loopback":   loopback.Main,
		"portmap":    portmap.Main,
	}
	name := filepath.Base(os.Args[0])
	plugin, ok := plugins[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s is not a CNI plugin of kedge\n", name)
		os.Exit(1)
	}
	// portmap and bridge run nft, which is beside this executable. A runtime that is not kedge's does
	// not have that folder in PATH.
	if own, err := os.Executable(); err == nil {
		os.Setenv("PATH", filepath.Dir(own)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	}
	plugin()
}
