package network

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// conflistName sorts before other files in the folder, so that the runtime chooses it.
	conflistName = "10-kedge.conflist"
	// networkName is the plugins' and libcni's name of the pods' network.
	networkName = "kedge"
	// BridgeName is the bridge of this node's pods. k3s uses the same name.
	BridgeName = "cni0"
	// addressDir is where the host-local plugin records used addresses. A reboot empties it,
	// and ends the pods, so no address stays taken by a pod that never ended properly.
	addressDir = datadir.RunDir + "/cni"
	// resultDir is where libcni keeps the results of plugins (CacheDir in libcni/api.go).
	//upstream:relies-on github.com/containernetworking/cni/libcni/api.go CacheDir
	resultDir = "/var/lib/cni"
)

// conflist has the values that vary in kedge's CNI configuration.
type conflist struct {
	// PodCIDRs are the node's, at most one of each family.
	PodCIDRs []netip.Prefix
	// MTU is the MTU of the backend in bytes.
	MTU int
	// Nftables is true if the kernel has nftables.
	Nftables bool
}

// The parts of the file that kedge uses. The fields are those of
// github.com/containernetworking/plugins v1.9.1.
type (
	//upstream:relies-on github.com/containernetworking/plugins/plugins/main/bridge/bridge.go NetConf
	//upstream:relies-on github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator/config.go IPAMConfig
	//upstream:relies-on github.com/containernetworking/plugins/plugins/meta/portmap/main.go PortMapConf
	//upstream:relies-on github.com/containernetworking/plugins/plugins/meta/bandwidth/main.go PluginConf
	cniList struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Plugins    []any  `json:"plugins"`
	}
	// cniPlugin has the settings of the plugin kedge-cni (cmd/helpers/cni/chain): those of bridge, and of portmap.
	cniPlugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		Bridge       string          `json:"bridge"`
		// IsDefaultGateway includes isGateway and gives pods the default route.
		IsDefaultGateway bool `json:"isDefaultGateway"`
		// ForceAddress changes the address of a bridge that has one from an earlier pod CIDR.
		ForceAddress  bool         `json:"forceAddress"`
		HairpinMode   bool         `json:"hairpinMode"`
		IPMasq        bool         `json:"ipMasq"`
		IPMasqBackend string       `json:"ipMasqBackend,omitempty"`
		MTU           int          `json:"mtu"`
		IPAM          cniHostLocal `json:"ipam"`
		PortMap       cniPortMap   `json:"portmap"`
	}
	cniHostLocal struct {
		Type    string       `json:"type"`
		DataDir string       `json:"dataDir"`
		Ranges  [][]cniRange `json:"ranges"`
	}
	cniRange struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	cniPortMap struct {
		Backend string `json:"backend"`
		SNAT    bool   `json:"snat"`
	}
)

// encode returns the content of the file.
func (c conflist) encode() ([]byte, error) {
	plugin := cniPlugin{
		Type:             "kedge-cni",
		Capabilities:     map[string]bool{"portMappings": true, "bandwidth": true},
		Bridge:           BridgeName,
		IsDefaultGateway: true,
		ForceAddress:     true,
		HairpinMode:      true,
		MTU:              c.MTU,
		IPAM:             cniHostLocal{Type: "host-local", DataDir: addressDir},
		PortMap:          cniPortMap{Backend: "nftables", SNAT: true},
	}
	for _, cidr := range c.PodCIDRs {
		plugin.IPAM.Ranges = append(plugin.IPAM.Ranges, []cniRange{{cidr.Masked()}})
	}
	if !c.Nftables {
		plugin.PortMap.Backend = "iptables"
		// The plugin's masquerading also hides pods from the pods of other nodes. Without
		// nftables there is no way around that.
		plugin.IPMasq, plugin.IPMasqBackend = true, "iptables"
	}
	content, err := json.MarshalIndent(cniList{CNIVersion: "1.0.0", Name: networkName, Plugins: []any{plugin}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	return append(content, '\n'), nil
}

// write writes the file into dir atomically. It leaves an unchanged file alone, because containerd
// reads its configuration again after each change.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/cni_conf_syncer.go cniNetConfSyncer.syncLoop
func (c conflist) write(dir string) error {
	content, err := c.encode()
	if err != nil {
		return err
	}
	// The plugin would let every user of the host read which pod has which address.
	if err := os.MkdirAll(addressDir, 0o700); err != nil {
		return fmt.Errorf("make folder of addresses: %w", err)
	}
	if err := os.Chmod(addressDir, 0o700); err != nil {
		return fmt.Errorf("protect folder of addresses: %w", err)
	}
	path := filepath.Join(dir, conflistName)
	if existing, err := os.ReadFile(path); err == nil && bytes.Equal(existing, content) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make CNI folder: %w", err)
	}
	// The file is made outside the folder, because containerd would read it after the first write.
	// Then it is renamed within the folder, because containerd ignores files that appear there
	// (internal/cri/server/cni_conf_syncer.go, syncLoop).
	outside, inside := dir+"."+conflistName+".tmp", path+".tmp"
	if err := os.WriteFile(outside, content, 0o600); err != nil {
		return fmt.Errorf("write CNI configuration: %w", err)
	}
	for _, rename := range [][2]string{{outside, inside}, {inside, path}} {
		if err := os.Rename(rename[0], rename[1]); err != nil {
			return fmt.Errorf("write CNI configuration: %w", err)
		}
	}
	return nil
}

// removeConflist removes the file if it exists.
func removeConflist(dir string) error {
	if err := os.Remove(filepath.Join(dir, conflistName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CNI configuration: %w", err)
	}
	return nil
}
