package apiserver

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/server/egressselector"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/restriction"
)

// newOptions are upstream's defaults, then what kubeadm or kedge sets,
// then the user's arguments.
func newOptions(c *Config) (*options.ServerRunOptions, error) {
	o := options.NewServerRunOptions()
	tcp, ok := c.Addr.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("configure API server: %v is not a TCP address", c.Addr)
	}
	ports, err := utilnet.ParsePortRange(c.Cluster.ServiceNodePortRange)
	if err != nil {
		return nil, fmt.Errorf("configure API server: service-node-port-range: %w", err)
	}
	// First, because upstream's flags may reset fields to defaults of their own.
	flags := o.Flags()
	files := c.Files

	o.GenericServerRunOptions.AdvertiseAddress = c.AdvertiseAddress.AsSlice()
	o.SecureServing.Listener = newMemoryListener(tcp)
	o.SecureServing.BindPort = tcp.Port
	// Never shown to anybody, but without it upstream makes one of its own.
	o.SecureServing.ServerCert.CertKey.CertFile = files.ServingCertFile
	o.SecureServing.ServerCert.CertKey.KeyFile = files.ServingKeyFile
	o.Etcd.StorageConfig.Transport.ServerList = strings.Split(c.DatastoreURL, ",")
	transport := &o.Etcd.StorageConfig.Transport
	transport.TrustedCAFile, transport.CertFile, transport.KeyFile = c.DatastoreCAFile, c.DatastoreCertFile, c.DatastoreKeyFile
	if c.DialDatastore != nil {
		transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return c.DialDatastore, nil }
	}
	// The one that writes only when something has changed. It is for a fixed
	// number of servers, which is one (--apiserver-count); the default renews a
	// lease in the datastore every 10 seconds for others to see.
	if !c.SharedDatastore {
		o.EndpointReconcilerType = string(reconcilers.MasterCountReconcilerType)
	} else {
		o.GenericServerRunOptions.ShutdownDelayDuration = stopNotice
	}

	issuer := "https://kubernetes.default.svc." + c.Cluster.ClusterDomain
	authn := o.Authentication
	authn.Anonymous.Allow = false // see authenticate
	authn.BootstrapToken.Enable = true
	authn.ClientCert.ClientCA = files.ClientCAFile
	authn.ServiceAccounts.Issuers = []string{issuer}
	authn.ServiceAccounts.KeyFiles = []string{files.ServiceAccountKeyFile}
	o.ServiceAccountSigningKeyFile = files.ServiceAccountKeyFile
	// Aggregated APIs take these from the ConfigMap
	// kube-system/extension-apiserver-authentication; the values are kubeadm's.
	authn.RequestHeader.ClientCAFile = files.RequestHeaderCAFile
	authn.RequestHeader.AllowedNames = []string{pki.ProxyClientUser}
	authn.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	authn.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	authn.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	o.ProxyClientCertFile, o.ProxyClientKeyFile = files.ProxyClientCertFile, files.ProxyClientKeyFile

	o.Authorization.Modes = []string{"Node", "RBAC"}
	restriction.Register(o.Admission.GenericAdmission, c.Cluster.FlannelBackend == "none")
	o.AllowPrivileged = true
	// A server without kube-proxy's rules in its network namespace can still
	// reach webhooks and aggregated APIs.
	o.EnableAggregatorRouting = true
	o.Features.EnableProfiling = false

	o.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname"}
	o.KubeletConfig.TLSClientConfig.CertFile = files.KubeletClientCertFile
	o.KubeletConfig.TLSClientConfig.KeyFile = files.KubeletClientKeyFile
	o.KubeletConfig.TLSClientConfig.CAFile = files.ClientCAFile

	o.ServiceClusterIPRanges = strings.Join(c.Cluster.ServiceCIDR, ",")
	o.ServiceNodePortRange = *ports

	setAuditLimits(o)

	if err := program.Parse(flags, c.Args); err != nil {
		return nil, err
	}
	useFiles(o, c)
	preferNames(o, flags, c.Egress)
	if reflect.ValueOf(*o.Metrics).IsZero() {
		// Else upstream logs an error about the manifest nobody gave
		// (component-base/metrics/options.go, Apply).
		o.Metrics = nil
	}
	// A node's own credentials must not reach beyond it, also where the user's
	// list of further plugins has forgotten this one.
	const nodeRestriction = "NodeRestriction"
	if admission := o.Admission.GenericAdmission; len(o.Admission.PluginNames) == 0 &&
		!slices.Contains(admission.EnablePlugins, nodeRestriction) && !slices.Contains(admission.DisablePlugins, nodeRestriction) {
		admission.EnablePlugins = append(admission.EnablePlugins, nodeRestriction)
	}
	// A list of all plugins is one of upstream's, and does not know kedge's.
	if names := o.Admission.PluginNames; len(names) > 0 && !slices.Contains(names, restriction.Name) {
		o.Admission.PluginNames = append(names, restriction.Name)
	}
	return o, nil
}

// preferNames has kubelets dialed by the names of their nodes. TLS then refuses the
// certificate of any other node. Addresses are not used at all: a node could claim
// another's, and the certificate of that other node would be right for it. Names
// can be dialed only by Egress. A user's argument wins.
func preferNames(o *options.ServerRunOptions, flags cliflag.NamedFlagSets, egress Egress) {
	const flag = "kubelet-preferred-address-types"
	if egress.Tunnels == nil || o.EgressSelector.ConfigFile != "" {
		return
	}
	for _, set := range flags.FlagSets {
		if set.Changed(flag) {
			return
		}
	}
	o.KubeletConfig.PreferredAddressTypes = []string{string(corev1.NodeHostName)}
}

// setGates sets the feature gates whose default is not kedge's, before those of
// the user's arguments.
func setGates() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		// One server has no peers to tell itself apart from, and to tell every
		// 10 seconds, in two places, that it is there.
		string(features.APIServerIdentity):                   false,
		string(features.UnknownVersionInteroperabilityProxy): false,
		// A copy of each list per change, and in each watch cache a timer of 15
		// seconds, so that a further page of a list need not come from the
		// datastore, which is near here.
		string(features.ListFromCacheSnapshot): false,
		// In each watch cache a goroutine and the sizes of all objects by their keys, so
		// that lists count as what they take; they count as so many objects without.
		string(features.SizeBasedListCostEstimate): false,
	})
}
