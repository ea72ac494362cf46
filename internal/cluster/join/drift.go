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

// checkSettings returns where a server's settings of the cluster differ from
// those of another of its servers.
func checkSettings(own, theirs config.Cluster, server string) error {
	mine, others := settings(own), settings(theirs)
	var faults []error
	for i, field := range mine {
		if here, there := field.String(), others[i].String(); here != there {
			faults = append(faults, fmt.Errorf("%s is %s here and %s there", field.Key, here, there))
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("this server would not fit into the cluster of the server at %s, which has other settings; give this one the same:\n%w",
			server, errors.Join(faults...))
	}
	return nil
}

// settings returns the cluster's settings, with what their defaults stand for.
func settings(c config.Cluster) []config.Field {
	addresses := c.DNSAddresses()
	c.ClusterDNS = nil
	for _, a := range addresses {
		c.ClusterDNS = append(c.ClusterDNS, a.String())
	}
	// All other fields have no value, here and there.
	return (&config.Config{Cluster: c}).Fields()
}

// drifted returns the names of own secrets that are not as another server's. While
// authorities are replaced the two may be a step apart: SharedAuthorities sees to that.
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

// driftError says that secrets are not those of the cluster.
func driftError(names []string, folder, server string) error {
	return fmt.Errorf("in %s these files are not what they are at the server at %s: %s. All servers of a cluster need the same. "+
		"If that server's are right, move this one's away, and it will take them from there; if this one's are, copy them there",
		folder, server, strings.Join(names, ", "))
}
