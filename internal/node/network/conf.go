package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// flannelTypes are flannel's names of the backends.
var flannelTypes = map[string]string{"vxlan": "vxlan", "host-gw": "host-gw", "wireguard-native": "wireguard"}

// backendKeys are the settings of flannel's backends that a user may make. VNI and the ports are
// the same on all nodes, and the fence and the checks of a host know them.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan.go VXLANBackend.RegisterNetwork
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/wireguard.go WireguardBackend.RegisterNetwork
var backendKeys = map[string][]string{
	"vxlan":            {"DirectRouting", "MTU"},
	"wireguard-native": {"MTU", "PersistentKeepaliveInterval"},
}

// backendDefaults are the values of settings that a file may repeat.
var backendDefaults = map[string]string{"VNI": "1", "Port": "8472", "ListenPort": "51820", "ListenPortV6": "51821", "Mode": `"separate"`}

// ReadConf reads a file in the format of flannel's configuration, for the setting flannel-conf, and
// returns the settings of the backend in it. It fails if the file says something else than the
// settings of the cluster, or something that kedge sets itself. It returns nil without a file.
func ReadConf(path string, cluster config.Cluster) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read flannel-conf: %w", err)
	}
	var conf struct {
		Network, IPv6Network   string
		EnableIPv4, EnableIPv6 *bool
		SubnetLen              int
		IPv6SubnetLen          int
		Backend                map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, fmt.Errorf("read flannel-conf %s: %w", path, err)
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("flannel-conf %s: %w", path, fmt.Errorf(format, args...)))
	}
	for key, text := range map[string]string{"Network": conf.Network, "IPv6Network": conf.IPv6Network} {
		prefix, err := netip.ParsePrefix(text)
		if text != "" && (err != nil || !slices.Contains(cluster.PodCIDRs(), prefix)) {
			fault("%s %s is not cluster-cidr %s: remove it", key, text, strings.Join(cluster.ClusterCIDR, ","))
		}
	}
	if conf.SubnetLen+conf.IPv6SubnetLen != 0 {
		fault("SubnetLen has no effect: remove it, and set kube-controller-manager-arg: node-cidr-mask-size=BITS on the servers")
	}
	backend := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(conf.Backend)) {
		value := conf.Backend[key]
		switch {
		case key == "Type":
			if string(value) != `"`+flannelTypes[cluster.FlannelBackend]+`"` {
				fault("Type %s is not flannel-backend %s: remove it, and set flannel-backend on the servers", value, cluster.FlannelBackend)
			}
		case slices.Contains(backendKeys[cluster.FlannelBackend], key):
			var parsed any
			if err := json.Unmarshal(value, &parsed); err != nil {
				fault("%s: %w", key, err)
			}
			backend[key] = parsed
		case backendDefaults[key] == string(value):
		default:
			fault("%s cannot be set: remove it. flannel-backend %s takes only %v", key, cluster.FlannelBackend, backendKeys[cluster.FlannelBackend])
		}
	}
	return backend, errors.Join(faults...)
}
