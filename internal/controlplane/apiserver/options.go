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
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver/essential"
	"github.com/kedge-dev/kedge/internal/controlplane/deletions"
	"github.com/kedge-dev/kedge/internal/controlplane/restriction"
)

// newOptions returns upstream's defaults, changed first to what kubeadm or kedge sets
// and then by the user's arguments.
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
	// No client sees this certificate, but without it upstream makes one of its own.
	o.SecureServing.ServerCert.CertKey.CertFile = files.ServingCertFile
	o.SecureServing.ServerCert.CertKey.KeyFile = files.ServingKeyFile
	setDatastore(o, c)
	setAuthentication(o, c)

	o.Authorization.Modes = []string{"Node", "RBAC"}
	restriction.Register(o.Admission.GenericAdmission, restriction.Config{Unenforced: !c.Cluster.EnforcesPolicies(), VIP: c.VIP, Pods: c.Cluster.PodCIDRs()})
	if c.Deletions != nil {
		deletions.Register(o.Admission.GenericAdmission, c.Deletions)
	}
	o.AllowPrivileged = true
	// So that a server without kube-proxy's rules reaches webhooks and aggregated
	// APIs too.
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
	essential.Use(o.Admission.GenericAdmission, audiencesOf(o.Authentication))
	useFiles(o, c)
	preferNames(o, flags, c.Egress)
	if reflect.ValueOf(*o.Metrics).IsZero() {
		// Otherwise upstream logs an error about a manifest that the user has not given
		// (component-base/metrics/options.go, Apply).
		//upstream:relies-on k8s.io/component-base/metrics/options.go Options.Apply
		o.Metrics = nil
	}
	keepPlugins(o.Admission)
	return o, nil
}

// setDatastore sets where the objects are, and who writes the addresses of the servers among them.
func setDatastore(o *options.ServerRunOptions, c *Config) {
	transport := &o.Etcd.StorageConfig.Transport
	transport.ServerList = strings.Split(c.Datastore.URL, ",")
	transport.TrustedCAFile, transport.CertFile, transport.KeyFile = c.Datastore.CAFile, c.Datastore.CertFile, c.Datastore.KeyFile
	if c.Datastore.Dial != nil {
		transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return c.Datastore.Dial, nil }
	}
	switch {
	case c.Datastore.Shared:
		o.GenericServerRunOptions.ShutdownDelayDuration = stopNotice
	case c.AdvertiseAddress.IsLoopback():
		// Endpoints may not have a loopback address, so the Service kubernetes has none.
		o.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)
	default:
		// This reconciler writes only changes. It is for a fixed number of servers,
		// which is one (--apiserver-count). The default one renews a lease in the
		// datastore every 10 seconds, for other servers.
		o.EndpointReconcilerType = string(reconcilers.MasterCountReconcilerType)
	}
}

// setAuthentication sets the certificates and keys that tell who a caller is.
func setAuthentication(o *options.ServerRunOptions, c *Config) {
	issuer := "https://kubernetes.default.svc." + c.Cluster.ClusterDomain
	authn, files := o.Authentication, c.Files
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
}

// keepPlugins adds the admission plugins that the user's own list may lack.
func keepPlugins(o *kubeoptions.AdmissionOptions) {
	// A node's credentials must not reach beyond the node, even if the user's list of
	// more plugins lacks this one.
	const nodeRestriction = "NodeRestriction"
	if generic := o.GenericAdmission; len(o.PluginNames) == 0 &&
		!slices.Contains(generic.EnablePlugins, nodeRestriction) && !slices.Contains(generic.DisablePlugins, nodeRestriction) {
		generic.EnablePlugins = append(generic.EnablePlugins, nodeRestriction)
	}
	// A list of all plugins has upstream's only, so kedge's is added.
	for _, name := range []string{restriction.Name, deletions.Name} {
		known := slices.Contains(o.GenericAdmission.RecommendedPluginOrder, name)
		if names := o.PluginNames; known && len(names) > 0 && !slices.Contains(names, name) {
			o.PluginNames = append(names, name)
		}
	}
}

// audiencesOf returns the audiences of the API: those that the user has set, and otherwise the issuers of
// tokens.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubeapiserver/options/authentication.go BuiltInAuthenticationOptions.ToAuthenticationConfig
func audiencesOf(authn *kubeoptions.BuiltInAuthenticationOptions) []string {
	if len(authn.APIAudiences) > 0 {
		return authn.APIAudiences
	}
	return authn.ServiceAccounts.Issuers
}

// preferNames makes the server dial kubelets by the names of their nodes, so that TLS
// refuses the certificate of any other node. With addresses it would not: a node could
// claim another node's address, and that node's certificate would be valid for it.
// Only egress can dial names. The user's argument wins.
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

// setGates sets the feature gates for which kedge has another default than upstream.
// The gates in the user's arguments win, because they are set later.
func setGates(o *options.ServerRunOptions) error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(gates(o))
}

// gates are what setGates sets.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/routine/routine.go WithRoutine
//upstream:relies-on k8s.io/apiserver/pkg/endpoints/handlers/get.go handleWatch
//upstream:relies-on k8s.io/apiserver/pkg/endpoints/handlers/watch.go perFlushGzipWriter.Flush
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/delegator.go NewCacheDelegator
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/store/watch_cache_storage.go WatchCacheStorage.MarkConsistent
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/watcher.go watchChan.processEvents watchChan.concurrentProcessEvents
func gates(o *options.ServerRunOptions) map[string]bool {
	return map[string]bool{
		// With these a server tells other servers every 10 seconds, in two places, that
		// it is there. One server has no others.
		string(features.APIServerIdentity):                   false,
		string(features.UnknownVersionInteroperabilityProxy): false,
		// This copies each list at each change, and runs a timer of 15 seconds in each
		// watch cache, so that the next page of a list does not come from the
		// datastore. Here the datastore is near.
		string(features.ListFromCacheSnapshot): false,
		// This reads every object from the datastore every five to eight minutes and compares it with
		// the watch cache. A difference would only be logged, and turn ListFromCacheSnapshot off.
		// The conformance tests run with upstream's variable, which ends a server that has one.
		string(features.DetectCacheInconsistency): false,
		// This keeps a goroutine and the sizes of all objects in each watch cache, so that
		// priority and fairness weighs lists by size. Without it, it weighs them by the
		// number of objects.
		string(features.SizeBasedListCostEstimate): false,
		// With this each watch of the datastore has one more goroutine, and another one for
		// each change while it is decoded. That helps only if changes come faster than
		// one goroutine decodes them.
		string(features.ConcurrentWatchObjectDecode): false,
		// With this each change that a watch tells a client on another host is compressed by
		// itself, once the watch has begun with a list. The server's compressor takes
		// 1.2 MB after each garbage collection, and each watch keeps 40 KB in the client.
		string(features.WatchListCompression): false,
		// With this each histogram of each part has its buckets a second time, in the form of
		// Prometheus's native histograms. The kubelet has the same default.
		string(metricsfeatures.NativeHistograms): false,
		// With this a watch keeps the stack of its last function, and not those of all
		// handlers before it. But an audit log would say of a watch, when it begins,
		// that it has ended.
		string(features.APIServingWithRoutine): !audited(o),
	}
}
