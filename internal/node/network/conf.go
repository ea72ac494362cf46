package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// flannelTypes are flannel's names of the backends.
var flannelTypes = map[string]string{"vxlan": "vxlan", "host-gw": "host-gw", "wireguard-native": "wireguard"}

// backendKeys are the settings of flannel's backends that a user may make on each node.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan.go VXLANBackend.RegisterNetwork
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/wireguard.go WireguardBackend.RegisterNetwork
var backendKeys = map[string][]string{
	"vxlan":            {"DirectRouting", "MTU"},
	"wireguard-native": {"MTU", "PersistentKeepaliveInterval"},
}

// backendDefaults are the values of settings that a file may repeat.
var backendDefaults = map[string]string{"ListenPort": "51820", "ListenPortV6": "51821", "Mode": `"separate"`}

// ReadConf reads a file in the format of flannel's configuration, for the setting flannel-conf, and
// returns the settings of the backend in it. It fails if the file says something else than the
// settings of the cluster, or something that kedge sets itself. It returns nil without a file.
func ReadConf(path string, cluster config.Cluster) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	text, err := datadir.ReadText(path)
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
	backend, shared := map[string]any{}, map[string]int{"VNI": cluster.VXLAN.VNI, "Port": cluster.VXLAN.Port}
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
		case cluster.FlannelBackend == "vxlan" && shared[key] != 0:
			if string(value) != strconv.Itoa(shared[key]) {
				fault("%s is %s, and the cluster's is %d: remove it, or set the same in flannel-conf on the servers and restart them", key, value, shared[key])
			}
		case backendDefaults[key] == string(value):
		default:
			fault("%s cannot be set: remove it. flannel-backend %s takes only %v", key, cluster.FlannelBackend, backendKeys[cluster.FlannelBackend])
		}
	}
	return backend, errors.Join(faults...)
}
