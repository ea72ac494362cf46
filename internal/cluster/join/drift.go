package join

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// checkSettings fails if this server's settings of the cluster differ from those of
// the cluster's other server. The error names each difference.
func checkSettings(own, theirs config.Cluster, server string) error {
	mine, others := settings(own), settings(theirs)
	var faults []error
	for i, field := range mine {
		if here, there := field.String(), others[i].String(); here != there {
			faults = append(faults, fmt.Errorf("%s is %s here and %s there", field.Key, here, there))
		}
	}
	if own.VXLAN != theirs.VXLAN {
		faults = append(faults, fmt.Errorf("flannel-conf has VNI %d and Port %d here, and VNI %d and Port %d there", own.VXLAN.VNI, own.VXLAN.Port, theirs.VXLAN.VNI, theirs.VXLAN.Port))
	}
	if len(faults) > 0 {
		return fmt.Errorf("this server cannot join the cluster of the server at %s, which has other settings; give this one the same:\n%w",
			server, errors.Join(faults...))
	}
	return nil
}

// settings returns the cluster's settings, with the addresses of the cluster DNS even
// if they are the default.
func settings(c config.Cluster) []config.Field {
	addresses := c.DNSAddresses()
	c.ClusterDNS = nil
	for _, a := range addresses {
		c.ClusterDNS = append(c.ClusterDNS, a.String())
	}
	// All other fields are empty on both sides.
	return (&config.Config{Cluster: c}).Fields()
}

// drifted returns the names of own secrets that differ from another server's. While
// authorities are replaced, the two servers may be one step apart. These differences
// are not counted: SharedAuthorities ends them.
func drifted(own, theirs map[string][]byte) []string {
	apart := pki.Successive(own["server-ca.crt"], theirs["server-ca.crt"])
	var names []string
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if content, ok := own[name]; ok && !bytes.Equal(bytes.TrimSpace(content), bytes.TrimSpace(theirs[name])) && !(apart && pki.IsReplaced(name)) {
			names = append(names, name)
		}
	}
	return names
}

// driftError says that secrets differ from those of the cluster, and how to mend it.
func driftError(names []string, folder, server string) error {
	return fmt.Errorf("these files in %s differ from those of the server at %s: %s. All servers of a cluster need the same files. "+
		"If that server's files are right, move this server's away, and this server will take them from there. If this server's are right, copy them there",
		folder, server, strings.Join(names, ", "))
}
