package apiserver

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/features"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/controlplane/deletions"
	"github.com/kedge-dev/kedge/internal/controlplane/restriction"
)

// TestOwnPluginsAreOn wants kedge's own plugins in force, even if the user lists all
// plugins, which must all be known.
func TestOwnPluginsAreOn(t *testing.T) {
	for name, args := range map[string][]string{
		"by default":      nil,
		"with more":       {"enable-admission-plugins=AlwaysPullImages"},
		"with all listed": {"admission-control=NamespaceLifecycle"},
	} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
			Dir: datadir.Dir(t.TempDir()), Args: args, Deletions: func() (*clientv3.Client, error) { return nil, errors.New("not ready") },
		})
		if err != nil {
			t.Fatalf("%s: make options: %v", name, err)
		}
		if faults := o.Admission.Validate(); len(faults) > 0 {
			t.Errorf("%s: got faults of admission %v, want none", name, faults)
		}
		order := o.Admission.GenericAdmission.RecommendedPluginOrder
		for i, own := range []string{restriction.Name, deletions.Name} {
			if order[len(order)-2+i] != own || len(o.Admission.PluginNames) > 0 && !slices.Contains(o.Admission.PluginNames, own) {
				t.Errorf("%s: the plugins are %v of %v", name, o.Admission.PluginNames, order)
			}
		}
	}
}

// TestAuditedWatches wants watches to be served by all handlers up to their end if there
// is an audit log, so that it says when they have ended.
func TestAuditedWatches(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want bool
	}{
		"by default":   {want: true},
		"to a file":    {args: []string{"audit-log-path=/var/log/audit.log"}},
		"to a webhook": {args: []string{"audit-webhook-config-file=/etc/webhook.yaml"}},
	} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
			Dir: datadir.Dir(t.TempDir()), Args: test.args,
		})
		if err != nil {
			t.Fatalf("%s: make options: %v", name, err)
		}
		if got := gates(o)[string(features.APIServingWithRoutine)]; got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// TestLoopbackAddress wants no endpoints of a server that only its host reaches: the API
// refuses them.
func TestLoopbackAddress(t *testing.T) {
	for address, want := range map[string]string{"127.0.0.1": "none", "192.0.2.1": "master-count"} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr(address), Cluster: config.Default().Cluster,
			Dir: datadir.Dir(t.TempDir()),
		})
		if err != nil {
			t.Fatal(err)
		}
		if o.EndpointReconcilerType != want {
			t.Errorf("%s: got the reconciler %s, want %s", address, o.EndpointReconcilerType, want)
		}
	}
}

// TestAudiences wants the audiences of the API to be those that the API server writes into requests of
// tokens, also if the user has set others.
func TestAudiences(t *testing.T) {
	for name, test := range map[string]struct{ args, want []string }{
		"by default":         {nil, []string{"https://kubernetes.default.svc.cluster.local"}},
		"with an issuer":     {[]string{"service-account-issuer=https://issuer.example.com"}, []string{"https://issuer.example.com"}},
		"with own audiences": {[]string{"service-account-issuer=https://issuer.example.com", "api-audiences=api,other"}, []string{"api", "other"}},
	} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
			Dir: datadir.Dir(t.TempDir()), Args: test.args,
		})
		if err != nil {
			t.Fatalf("%s: make options: %v", name, err)
		}
		if got := audiencesOf(o.Authentication); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
