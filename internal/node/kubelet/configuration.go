package kubelet

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/util/taints"
)

// A node that systemd shuts down gives its pods this long, and of it the
// critical ones the end: the example of upstream's documentation.
const (
	shutdownGracePeriod             = 30 * time.Second
	shutdownGracePeriodCriticalPods = 10 * time.Second
)

// unchangedStatus is three times upstream's.
const unchangedStatus = 15 * time.Minute

// inProcess stands where the kubelet's command line has a kubeconfig. It is not
// a file and is not read.
const inProcess = "in process"

// configure returns the kubelet's settings: upstream's defaults with kedge's
// own over them, before any arguments of the user's.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/options/options.go applyLegacyDefaults
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go run getCgroupDriverFromCRI loadConfigFile
func configure(cfg Config, own limits) (*options.KubeletServer, error) {
	// This includes the historic defaults of upstream's command line (anonymous
	// requests, everything authorized, an open read-only port:
	// applyLegacyDefaults in cmd/kubelet/app/options/options.go), all of which
	// are set anew below.
	server, err := options.NewKubeletServer()
	if err != nil {
		return nil, fmt.Errorf("make kubelet configuration: %w", err)
	}

	flags := &server.KubeletFlags
	// Without it the kubelet throws away the clients it is given and runs
	// standalone: cmd/kubelet/app/server.go, run.
	flags.KubeConfig = inProcess
	flags.HostnameOverride = cfg.NodeName
	flags.NodeIP = strings.Join(addresses(cfg.NodeIPs), ",")
	flags.RootDirectory = cfg.Root
	flags.CertDirectory = filepath.Join(cfg.Root, "pki")

	for _, label := range cfg.Labels {
		name, value, _ := strings.Cut(label, "=")
		flags.NodeLabels[name] = value
	}

	kc := &server.KubeletConfiguration
	if kc.RegisterWithTaints, _, err = taints.ParseTaints(cfg.Taints); err != nil {
		return nil, fmt.Errorf("node-taint: %w", err)
	}
	kc.ProviderID = "kedge://" + cfg.NodeName
	kc.ContainerRuntimeEndpoint = "unix://" + cfg.RuntimeSocket
	kc.StaticPodPath = cfg.StaticPods
	kc.ClusterDomain = cfg.ClusterDomain
	kc.ClusterDNS = addresses(cfg.ClusterDNS)
	kc.ResolverConfig = cfg.ResolvConf
	kc.VolumePluginDir = filepath.Join(cfg.Root, "volumeplugins")

	kc.Authentication.Anonymous.Enabled = false
	kc.Authentication.Webhook.Enabled = true
	kc.Authentication.X509.ClientCAFile = cfg.ClientCAFile
	kc.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	kc.ReadOnlyPort = 0
	kc.HealthzPort = 0 // kedge status tells, without a port
	// A changed status is reported within seconds, and the Lease tells that the node
	// lives; what is left is a write to the disk for each report that says nothing new.
	kc.NodeStatusReportFrequency.Duration = unchangedStatus
	// kedge renews these files; the kubelet reads them again when they change
	// (feature ReloadKubeletServerCertificateFile).
	kc.TLSCertFile = cfg.ServingCertFile
	kc.TLSPrivateKeyFile = cfg.ServingKeyFile
	kc.ServerTLSBootstrap = false
	kc.RotateCertificates = false

	// The runtime is asked as well, and its answer wins: getCgroupDriverFromCRI
	// in cmd/kubelet/app/server.go.
	kc.CgroupDriver = cfg.Facts.CgroupDriver
	kc.FailCgroupV1 = false
	kc.FailSwapOn = false // as k3s; pods get no swap unless memorySwap says so
	// They would need iptables, and hold nothing kube-proxy does not make itself.
	kc.MakeIPTablesUtilChains = false
	kc.ProtectKernelDefaults = cfg.ProtectKernel
	if !cfg.Facts.SysResource {
		// The kernel refuses to lower the one and to raise the other; what they
		// are already is allowed.
		kc.OOMScoreAdj = own.oomScoreAdj
		kc.MaxOpenFiles = min(kc.MaxOpenFiles, own.openFiles)
	}
	if cfg.Facts.Systemd {
		kc.ShutdownGracePeriod.Duration = shutdownGracePeriod
		kc.ShutdownGracePeriodCriticalPods.Duration = shutdownGracePeriodCriticalPods
	}

	// Upstream sets its thresholds only in configurations from files
	// (loadConfigFile in cmd/kubelet/app/server.go). Those for disks are k3s's
	// here: many a small machine has less than the tenth and seventh free that
	// upstream wants, and would evict every pod. Once one is met a tenth is
	// freed, so that a node does not sway around it.
	kc.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
	kc.EvictionMinimumReclaim = map[string]string{}
	for _, signal := range []string{"nodefs.available", "imagefs.available"} {
		kc.EvictionHard[signal] = "5%"
		kc.EvictionMinimumReclaim[signal] = "10%"
	}
	return server, nil
}

func addresses(ips []netip.Addr) []string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = ip.String()
	}
	return texts
}
