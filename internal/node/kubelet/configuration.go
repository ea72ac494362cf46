package kubelet

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/util/taints"
)

// unchangedStatus is how often a node reports an unchanged status. It is three times upstream's
// default.
const unchangedStatus = 15 * time.Minute

// inProcess replaces the path of the kubeconfig in the kubelet's flags. It is not a file and is
// never read.
const inProcess = "in process"

// configure returns the kubelet's settings: upstream's defaults with kedge's settings over them. The
// user's arguments are not applied yet.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/options/options.go applyLegacyDefaults
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go run getCgroupDriverFromCRI
func configure(cfg Config, own limits) (*options.KubeletServer, error) {
	// This includes the historic defaults of upstream's command line: anonymous requests,
	// everything authorized, an open read-only port (applyLegacyDefaults in
	// cmd/kubelet/app/options/options.go). All of these are overwritten below.
	server, err := options.NewKubeletServer()
	if err != nil {
		return nil, fmt.Errorf("make kubelet configuration: %w", err)
	}

	flags := &server.KubeletFlags
	// If KubeConfig is empty, the kubelet discards the clients that it is given and runs
	// standalone (run in cmd/kubelet/app/server.go).
	flags.KubeConfig = inProcess
	flags.HostnameOverride = cfg.NodeName
	flags.NodeIP = strings.Join(addresses(cfg.NodeIPs), ",")
	flags.RootDirectory = cfg.Root
	flags.CertDirectory = filepath.Join(cfg.Root, "pki")

	flags.ImageCredentialProviderBinDir, flags.ImageCredentialProviderConfigPath = cfg.CredentialProviders, cfg.CredentialConfig
	if cfg.CloudController {
		flags.CloudProvider = externalProvider
	}
	for _, label := range cfg.Labels {
		name, value, _ := strings.Cut(label, "=")
		flags.NodeLabels[name] = value
	}

	kc := &server.KubeletConfiguration
	if kc.RegisterWithTaints, _, err = taints.ParseTaints(cfg.Taints); err != nil {
		return nil, fmt.Errorf("node-taint: %w", err)
	}
	kc.ProviderID = ownProviderID(cfg.NodeName)
	kc.ContainerRuntimeEndpoint = "unix://" + cfg.RuntimeSocket
	kc.StaticPodPath = cfg.StaticPods
	kc.ClusterDomain = cfg.ClusterDomain
	kc.ClusterDNS = addresses(cfg.ClusterDNS)
	kc.ResolverConfig = cfg.ResolvConf
	kc.VolumePluginDir = filepath.Join(cfg.Root, "volumeplugins")

	setAuthentication(kc, cfg)
	kc.HealthzPort = 0 // kedge status reports health without a port
	// A changed status is reported within seconds, and the Lease shows that the node is alive. The
	// regular report of an unchanged status only costs the server a write to its disk.
	kc.NodeStatusReportFrequency.Duration = unchangedStatus

	// The kubelet also asks the runtime, whose answer wins (getCgroupDriverFromCRI in
	// cmd/kubelet/app/server.go).
	kc.CgroupDriver = cfg.Facts.CgroupDriver
	kc.FailCgroupV1 = false
	kc.FailSwapOn = false // as in k3s; pods get no swap unless memorySwap says so
	// These chains would need iptables, and kube-proxy makes everything in them itself.
	kc.MakeIPTablesUtilChains = false
	kc.ProtectKernelDefaults = cfg.ProtectKernel
	kc.FeatureGates = map[string]bool{
		string(metricsfeatures.NativeHistograms): false, // as in the API server (gates)
		// The runtime tells of containers that end. With a runtime that restarts, upstream gives up after five attempts at once.
		string(features.EventedPLEG): cfg.Runtime != nil,
	}
	if !cfg.Facts.SysResource {
		// The kernel refuses to lower the OOM score and to raise the limit of open files. It accepts
		// the present values.
		kc.OOMScoreAdj = own.oomScoreAdj
		kc.MaxOpenFiles = min(kc.MaxOpenFiles, own.openFiles)
	}

	setEviction(kc)
	return server, nil
}

// setAuthentication sets who may ask the kubelet: nobody without authentication.
func setAuthentication(kc *kubeletconfig.KubeletConfiguration, cfg Config) {
	kc.Authentication.Anonymous.Enabled = false
	kc.Authentication.Webhook.Enabled = true
	kc.Authentication.X509.ClientCAFile = cfg.ClientCAFile
	kc.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	kc.ReadOnlyPort = 0
	// kedge renews these files. The kubelet reads them again when they change (feature
	// ReloadKubeletServerCertificateFile).
	kc.TLSCertFile = cfg.ServingCertFile
	kc.TLSPrivateKeyFile = cfg.ServingKeyFile
	kc.ServerTLSBootstrap = false
	kc.RotateCertificates = false
}

// setEviction sets when pods have to go because the node has too little left.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go loadConfigFile
func setEviction(kc *kubeletconfig.KubeletConfiguration) {
	// Upstream sets its thresholds only in configurations from files (loadConfigFile in
	// cmd/kubelet/app/server.go). The thresholds for disks are k3s's: upstream requires 10 % and
	// 15 % free space, which many small machines do not have, so every pod would be evicted. When
	// a threshold is reached, the kubelet frees 10 %, so that the node does not alternate around it.
	kc.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	kc.EvictionMinimumReclaim = map[string]string{}
	for _, signal := range []string{"nodefs.available", "imagefs.available"} {
		kc.EvictionHard[signal] = "5%"
		kc.EvictionMinimumReclaim[signal] = "10%"
	}
}

// ownProviderID is the provider ID of a node that no cloud provider knows.
func ownProviderID(node string) string { return "kedge://" + node }

func addresses(ips []netip.Addr) []string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = ip.String()
	}
	return texts
}
