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
	// conflistName sorts before what others would put beside it.
	conflistName = "10-kedge.conflist"
	// networkName is what the plugins and libcni call the pods' network.
	networkName = "kedge"
	// bridgeName is the bridge that this node's pods are on; k3s's users know it.
	bridgeName = "cni0"
	// addressDir is where the host-local plugin notes which addresses are
	// taken. It is gone after a reboot, as the pods are, so that no address of
	// a pod that never ended properly is lost.
	addressDir = datadir.RunDir + "/cni"
	// resultDir is where libcni keeps what plugins answered: libcni/api.go, CacheDir.
	//upstream:relies-on github.com/containernetworking/cni/libcni/api.go CacheDir
	resultDir = "/var/lib/cni"
)

// conflist is what varies in kedge's CNI configuration.
type conflist struct {
	// PodCIDRs are the node's own, at most one of each family.
	PodCIDRs []netip.Prefix
	// MTU is the backend's, in bytes.
	MTU int
	// Nftables is whether the kernel has nftables.
	Nftables bool
}

// The file, as far as it is used here. Its fields are those of
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
	cniBridge struct {
		Type   string `json:"type"`
		Bridge string `json:"bridge"`
		// IsDefaultGateway includes isGateway and gives pods the default route.
		IsDefaultGateway bool `json:"isDefaultGateway"`
		// ForceAddress moves a bridge that is left from an earlier range.
		ForceAddress  bool         `json:"forceAddress"`
		HairpinMode   bool         `json:"hairpinMode"`
		IPMasq        bool         `json:"ipMasq"`
		IPMasqBackend string       `json:"ipMasqBackend,omitempty"`
		MTU           int          `json:"mtu"`
		IPAM          cniHostLocal `json:"ipam"`
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
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		Backend      string          `json:"backend"`
		SNAT         bool            `json:"snat"`
	}
	cniBandwidth struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
	}
)

// encode returns the file's content.
func (c conflist) encode() ([]byte, error) {
	bridge := cniBridge{
		Type:             "bridge",
		Bridge:           bridgeName,
		IsDefaultGateway: true,
		ForceAddress:     true,
		HairpinMode:      true,
		MTU:              c.MTU,
		IPAM:             cniHostLocal{Type: "host-local", DataDir: addressDir},
	}
	for _, cidr := range c.PodCIDRs {
		bridge.IPAM.Ranges = append(bridge.IPAM.Ranges, []cniRange{{cidr.Masked()}})
	}
	portMap := cniPortMap{
		Type:         "portmap",
		Capabilities: map[string]bool{"portMappings": true},
		Backend:      "nftables",
		SNAT:         true,
	}
	if !c.Nftables {
		portMap.Backend = "iptables"
		// The plugin's own masquerading also hides pods from other nodes' pods;
		// that is the price of such a kernel.
		bridge.IPMasq, bridge.IPMasqBackend = true, "iptables"
	}
	content, err := json.MarshalIndent(cniList{
		CNIVersion: "1.0.0",
		Name:       networkName,
		Plugins: []any{
			bridge,
			portMap,
			cniBandwidth{Type: "bandwidth", Capabilities: map[string]bool{"bandwidth": true}},
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	return append(content, '\n'), nil
}

// write puts the file into dir, whole or not at all. A file that is right is
// left alone: containerd reads its configuration again whenever one changes.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/cni_conf_syncer.go cniNetConfSyncer.syncLoop
func (c conflist) write(dir string) error {
	content, err := c.encode()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, conflistName)
	if existing, err := os.ReadFile(path); err == nil && bytes.Equal(existing, content) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make CNI folder: %w", err)
	}
	// Made beside the folder: containerd would read it at the first write. Then
	// renamed within it: of what happens in the folder, containerd ignores that
	// a file appears (internal/cri/server/cni_conf_syncer.go, syncLoop).
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

// removeConflist removes the file if it is there.
func removeConflist(dir string) error {
	if err := os.Remove(filepath.Join(dir, conflistName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CNI configuration: %w", err)
	}
	return nil
}
