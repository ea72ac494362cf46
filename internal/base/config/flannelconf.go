package config

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// VXLAN is what all nodes of a cluster have in common if its FlannelBackend is vxlan. It has
// no key of its own: a server takes it from its FlannelConf, and agents get it from the
// server.
type VXLAN struct {
	// VNI is the number of the network. It is in the names of flannel's devices.
	VNI int
	// Port is the UDP port of every node.
	Port int
}

// The largest VNI is that with which the name of a device has 15 bytes: flannel.VNI, and
// flannel-v6.VNI if pods have IPv6 addresses.
const (
	largestVNI   = 9_999_999
	largestVNIv6 = 9_999
)

// readVXLAN takes VXLAN from the file of FlannelConf, if there is one. network.ReadConf reads the
// rest of the file.
func (c *Config) readVXLAN() error {
	path := c.Node.FlannelConf
	if path == "" || c.Cluster.FlannelBackend != "vxlan" {
		return nil
	}
	text, err := datadir.ReadText(path)
	if err != nil {
		return &FieldError{"flannel-conf", err.Error()}
	}
	conf := struct{ Backend VXLAN }{c.Cluster.VXLAN}
	if err := json.Unmarshal(text, &conf); err != nil {
		return &FieldError{"flannel-conf", path + ": " + err.Error()}
	}
	v, largest := &validator{}, largestVNI
	for _, cidr := range c.Cluster.ClusterCIDR {
		if strings.Contains(cidr, ":") {
			largest = largestVNIv6
		}
	}
	if conf.Backend.VNI < 1 || conf.Backend.VNI > largest {
		v.fault("flannel-conf", "%s: VNI %d cannot be used: use a number from 1 to %d", path, conf.Backend.VNI, largest)
	}
	if conf.Backend.Port < 1 || conf.Backend.Port > 65535 {
		v.fault("flannel-conf", "%s: invalid Port %d: use a number from 1 to 65535", path, conf.Backend.Port)
	}
	if len(v.faults) == 0 {
		c.Cluster.VXLAN = conf.Backend
	}
	return errors.Join(v.faults...)
}
