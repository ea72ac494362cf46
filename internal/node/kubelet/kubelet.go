// Package kubelet runs upstream's kubelet in this process. It translates kedge's settings of the
// node into the kubelet's typed configuration and dependencies, and applies the user's
// --kubelet-arg over them. The agent package creates one Kubelet for every node.
package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	cadvisorcontainerd "github.com/google/cadvisor/lib/container/containerd"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/volume/util/subpath"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/node/kubelet/staticpods"
)

// Config is what New needs.
type Config struct {
	NodeName string
	// NodeIPs are the node's addresses: one, or one of each family with the preferred one
	// first.
	NodeIPs []netip.Addr
	// ExternalIPs are the addresses under which networks that cannot reach NodeIPs reach the
	// node: none, or one of each family.
	ExternalIPs []netip.Addr
	// CloudController is true if a cloud controller manager of the user's sets the node's
	// addresses and provider ID.
	CloudController bool
	// CredentialProviders is the folder of programs that get passwords of registries, and
	// CredentialConfig says which. Both are empty if there are none.
	CredentialProviders, CredentialConfig string
	// Client reaches the API as the node (system:node:NAME).
	Client *rest.Config
	// Informers provide Services, for the environment of containers. If it is nil, the kubelet reads
	// them with Client.
	Informers objectcache.Source
	// RuntimeSocket is the path of the socket that serves the CRI.
	RuntimeSocket string
	// Runtime answers queries to the same runtime within this process. It may be nil.
	Runtime Runtime
	// Gate admits pods. It is nil if pods need no admission.
	Gate          Gate
	ClusterDNS    []netip.Addr
	ClusterDomain string
	// ResolvConf is the resolv.conf for pods with dnsPolicy Default. See host.ResolvConf.
	ResolvConf string
	// ServingCertFile and ServingKeyFile are read again when they change.
	ServingCertFile string
	ServingKeyFile  string
	// ClientCAFile holds the authorities that sign the certificates of the kubelet's clients.
	ClientCAFile string
	// StaticPods is the folder of static pod manifests.
	StaticPods string
	// Warn tells users about a fault in one of their files, by an Event of the node.
	Warn func(message string)
	// Root is the folder of the kubelet's state, datadir.KubeletRoot.
	Root  string
	Facts host.Facts
	// The node is registered with Labels, each as name=value, and Taints, each as
	// name=value:effect.
	Labels, Taints []string
	// ProtectKernel is the setting protect-kernel-defaults.
	ProtectKernel bool
	// Paths are answered at the kubelet's port, instead of upstream's handlers, for callers
	// with the right to read them: paths of metrics need get on nodes/metrics.
	Paths map[string]http.Handler
	// Args are the user's arguments for upstream's kubelet, as name=value.
	Args []string
}

// Kubelet is a component.Component.
type Kubelet struct {
	cfg    Config
	server *options.KubeletServer
	// ownsAddresses is true if this package sets the node's addresses.
	ownsAddresses bool
	// measuring is nil if the user has chosen the runtime, when cAdvisor measures, or when pods are
	// evicted.
	measuring *measuring
}

// New returns a kubelet. The error lists every fault in cfg.Args, or in the
// configuration of credential providers.
func New(cfg Config) (*Kubelet, error) {
	own, err := readLimits()
	if err != nil {
		return nil, err
	}
	server, err := configure(cfg, own)
	if err != nil {
		return nil, err
	}
	thresholds := maps.Clone(server.EvictionHard)
	lengthenInterval()
	if err := applyArguments(server, cfg.Args); err != nil {
		return nil, err
	}
	if err := checkCredentialProviders(server.ImageCredentialProviderBinDir, server.ImageCredentialProviderConfigPath); err != nil {
		return nil, err
	}
	k := &Kubelet{cfg: cfg, server: server}
	k.measuring = newMeasuring(cfg.Runtime != nil && len(server.EvictionSoft) == 0 && maps.Equal(server.EvictionHard, thresholds))
	switch {
	case server.CloudProvider != "":
		// The controller of the user's cloud provider sets the addresses and the provider ID.
		if server.ProviderID == ownProviderID(cfg.NodeName) {
			server.ProviderID = ""
		}
	case len(cfg.ExternalIPs) > 0:
		k.ownsAddresses, server.CloudProvider = true, externalProvider
	}
	return k, nil
}

// limits are limits that the kernel has set for this process.
type limits struct {
	oomScoreAdj int32
	openFiles   int64 // the hard limit
}

func readLimits() (limits, error) {
	content, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return limits{}, fmt.Errorf("read OOM score: %w", err)
	}
	score, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 32)
	if err != nil {
		return limits{}, fmt.Errorf("read OOM score: %w", err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return limits{}, fmt.Errorf("read limit of open files: %w", err)
	}
	return limits{int32(score), int64(min(files.Max, math.MaxInt64))}, nil
}

// Port is the port on which the kubelet's server listens.
func (k *Kubelet) Port() int { return int(k.server.Port) }

// Name implements component.Component.
func (k *Kubelet) Name() string { return "kubelet" }

// Run implements component.Component. It is ready when the kubelet has registered its node and
// answers on its port. Pods keep running after Run ends.
//
// Upstream's kubelet is meant to run as long as its process. After its start it handles most
// failures by os.Exit. When ctx is cancelled, the sync loop and what depends on it end. The
// following do not end (paths in k8s.io/kubernetes v1.37.2):
//   - the HTTPS server: pkg/kubelet/server/server.go:211
//   - the socket of the pod resources API: pkg/kubelet/server/server.go:268
//   - informers of nodes and services: pkg/kubelet/kubelet.go:511, 574
//   - plug-in manager: pkg/kubelet/kubelet.go:1873
//   - node status and lease: pkg/kubelet/kubelet.go:1956, 1966
//   - RuntimeClass informer: pkg/kubelet/kubelet.go:1987
//   - upkeep of cgroups: pkg/kubelet/cm/container_manager_linux.go:709, 720 and
//     pkg/kubelet/cm/qos_container_manager_linux.go:184
//   - pod life-cycle events (pkg/kubelet/pleg/generic.go, Start) and cAdvisor (manager.Start)
//
// So a process can run only one kubelet, and only once.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/server/server.go ListenAndServeKubeletServer ListenAndServePodResources
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.Run Kubelet.initializeRuntimeDependentModules
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/container_manager_linux.go containerManagerImpl.Start
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/qos_container_manager_linux.go qosContainerManagerImpl.Start
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/pleg/generic.go GenericPLEG.Start
//upstream:relies-on github.com/google/cadvisor/lib/manager/manager.go manager.Start
func (k *Kubelet) Run(ctx context.Context, ready func()) error {
	if err := k.checkPort(ctx); err != nil {
		return err
	}
	dependencies, err := app.UnsecuredDependencies(ctx, k.server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return fmt.Errorf("prepare kubelet: %w", err)
	}
	dependencies.Mounter = &mounter{dependencies.Mounter}
	dependencies.Subpather = subpath.New(dependencies.Mounter)
	// Auth stays nil, so that run() builds it from the clients.
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	if err := k.connect(waiting, dependencies); err != nil {
		return fmt.Errorf("connect kubelet to the API: %w", err)
	}
	k.useRuntime(waiting, dependencies)
	dependencies.Options = append(dependencies.Options, hurryVolumes)
	k.serve(dependencies)
	// cAdvisor asks containerd for the names of containers. Upstream takes containerd's address
	// only from this variable (a flag of cAdvisor's). Another runtime does not answer containerd's
	// API, so only the kubelet talks to it.
	//upstream:relies-on github.com/google/cadvisor/lib/container/containerd/factory.go ArgContainerdEndpoint Register
	*cadvisorcontainerd.ArgContainerdEndpoint = k.cfg.RuntimeSocket

	announced := make(chan struct{})
	go func() {
		defer close(announced)
		if k.waitReady(waiting, dependencies.KubeClient) {
			ready()
		}
	}()
	var guarding sync.WaitGroup
	if folder := k.server.StaticPodPath; folder != "" {
		guard := &staticpods.Guard{Folder: folder, Check: k.checkStaticPod, Warn: k.cfg.Warn, Log: logrus.WithField("component", k.Name())}
		guarding.Go(func() { guard.Run(waiting) })
	}
	err = app.Run(ctx, k.server, dependencies, utilfeature.DefaultFeatureGate)
	stop()
	guarding.Wait()
	<-announced
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// checkPort returns an error if another process uses the kubelet's port. The kubelet itself would
// end this process without saying what to do.
func (k *Kubelet) checkPort(ctx context.Context) error {
	if !k.server.EnableServer {
		return nil
	}
	address := net.JoinHostPort(k.server.Address, strconv.Itoa(int(k.server.Port)))
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("kubelet's port %d: %w: stop the process that listens on it (see `ss -lntp`), or choose another port with %s port=NUMBER",
			k.server.Port, err, flagName)
	}
	return listener.Close()
}

// waitReady waits until the node is up. It returns false if ctx ends before that.
func (k *Kubelet) waitReady(ctx context.Context, client kubernetes.Interface) bool {
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		return k.answers(ctx) && k.registered(ctx, client) && (!k.ownsAddresses || k.correctAddresses(ctx, client)), nil
	})
	return err == nil
}

// answers tells whether the kubelet's server accepts connections.
func (k *Kubelet) answers(ctx context.Context) bool {
	if !k.server.EnableServer {
		return true
	}
	address := netip.MustParseAddr(k.server.Address)
	if address.IsUnspecified() {
		address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	dialer := tls.Dialer{Config: &tls.Config{
		// Nothing is sent over this connection, so the certificate does not matter.
		InsecureSkipVerify: true,
	}}
	connection, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(address, uint16(k.server.Port)).String())
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// registered tells whether the node is in the API, together with its CSINode. Before that,
// storage drivers cannot register.
func (k *Kubelet) registered(ctx context.Context, client kubernetes.Interface) bool {
	if !k.server.RegisterNode {
		return true
	}
	node, err := client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	drivers, err := client.StorageV1().CSINodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	return err == nil && slices.ContainsFunc(drivers.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == node.UID })
}
