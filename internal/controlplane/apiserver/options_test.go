package apiserver

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/controlplane/restriction"
)

// TestRestrictionIsOn wants kedge's own plugin in force, even if the user lists all
// plugins, which must all be known.
func TestRestrictionIsOn(t *testing.T) {
	for name, args := range map[string][]string{
		"by default":      nil,
		"with more":       {"enable-admission-plugins=AlwaysPullImages"},
		"with all listed": {"admission-control=NamespaceLifecycle"},
	} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
			Dir: datadir.Dir(t.TempDir()), Args: args,
		})
		if err != nil {
			t.Fatalf("%s: make options: %v", name, err)
		}
		if faults := o.Admission.Validate(); len(faults) > 0 {
			t.Errorf("%s: got faults of admission %v, want none", name, faults)
		}
		order := o.Admission.GenericAdmission.RecommendedPluginOrder
		if order[len(order)-1] != restriction.Name || len(o.Admission.PluginNames) > 0 && !slices.Contains(o.Admission.PluginNames, restriction.Name) {
			t.Errorf("%s: the plugins are %v of %v", name, o.Admission.PluginNames, order)
		}
	}
}
