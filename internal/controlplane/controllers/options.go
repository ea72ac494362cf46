package controllers

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/kedge-dev/kedge/internal/controlplane/arguments"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
)

var program = arguments.Program{Name: "kube-controller-manager", Option: "kube-controller-manager-arg", Refused: map[string]string{
	"kubeconfig":                arguments.InProcess,
	"master":                    arguments.InProcess,
	"authentication-kubeconfig": arguments.InProcess,
	"authorization-kubeconfig":  arguments.InProcess,
	"leader-elect":              arguments.OneLeader,
}}

// shutdownTimeout is how long controllers may take to stop when this server is not elected any
// more. Upstream's process ends then in any case, so it waits for 10 s only. This process goes
// on, its controllers' requests have ended, and a server whose datastore or processors are
// overloaded needs longer.
const shutdownTimeout = time.Minute

// newOptions returns upstream's defaults, changed first to what kubeadm or kedge sets
// and then by the user's arguments.
func newOptions(c *Config) (*options.KubeControllerManagerOptions, error) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("configure controllers: %w", err)
	}
	limitWorkers(o, max(2, runtime.GOMAXPROCS(0)))
	// First, because upstream's flags reset some fields to defaults of their own.
	flags := o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	files := c.Files
	healthport.SetDefaults(o.SecureServing, c.Address, files.ServingCertFile, files.ServingKeyFile)
	o.Generic.Debugging.EnableProfiling = false
	// All that upstream enables, and the two that bootstrap tokens need.
	o.Generic.Controllers = []string{"*", names.BootstrapSignerController, names.TokenCleanerController}
	// Upstream ends the process when it loses an election.
	o.Generic.LeaderElection.LeaderElect = false
	o.ControllerShutdownTimeout = shutdownTimeout

	o.KubeCloudShared.AllocateNodeCIDRs = true
	o.KubeCloudShared.ClusterCIDR = strings.Join(c.Cluster.ClusterCIDR, ",")
	o.NodeIPAMController.ServiceCIDR = strings.Join(c.Cluster.ServiceCIDR, ",")

	// Upstream's default is in /usr, which may be read-only.
	o.PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir = c.VolumePlugins

	o.SAController.RootCAFile = files.RootCAFile
	o.SAController.ServiceAccountKeyFile = files.ServiceAccountKeyFile
	// Nodes and clients are trusted by the client authority.
	signing := o.CSRSigningController
	signing.KubeletServingSignerConfiguration.CertFile = files.ClientSignerFile
	signing.KubeletServingSignerConfiguration.KeyFile = files.ClientCAKeyFile
	signing.LegacyUnknownSignerConfiguration.CertFile = files.ServerSignerFile
	signing.LegacyUnknownSignerConfiguration.KeyFile = files.ServerCAKeyFile
	signing.KubeletClientSignerConfiguration.CertFile = files.ClientSignerFile
	signing.KubeletClientSignerConfiguration.KeyFile = files.ClientCAKeyFile
	signing.KubeAPIServerClientSignerConfiguration.CertFile = files.ClientSignerFile
	signing.KubeAPIServerClientSignerConfiguration.KeyFile = files.ClientCAKeyFile

	if err := program.Parse(flags, c.Args); err != nil {
		return nil, err
	}
	// Last, because upstream refuses these beside the user's node-cidr-mask-size.
	chooseNodeMasks(o.NodeIPAMController.NodeIPAMControllerConfiguration, c.Cluster.PodCIDRs())
	return o, nil
}

// limitWorkers limits the workers of each controller. Upstream has up to 50 of them,
// which wait for a distant server and for a client's limit of 20 requests a second. Here
// a request is a function call.
func limitWorkers(o *options.KubeControllerManagerOptions, most int) {
	for _, workers := range []*int32{
		&o.CronJobController.ConcurrentCronJobSyncs,
		&o.DaemonSetController.ConcurrentDaemonSetSyncs,
		&o.DeploymentController.ConcurrentDeploymentSyncs,
		&o.DeviceTaintEvictionController.ConcurrentSyncs,
		&o.EndpointController.ConcurrentEndpointSyncs,
		&o.EndpointSliceController.ConcurrentServiceEndpointSyncs,
		&o.EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs,
		&o.EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs,
		&o.GarbageCollectorController.ConcurrentGCSyncs,
		&o.HPAController.ConcurrentHorizontalPodAutoscalerSyncs,
		&o.JobController.ConcurrentJobSyncs,
		&o.NamespaceController.ConcurrentNamespaceSyncs,
		&o.ReplicaSetController.ConcurrentRSSyncs,
		&o.ReplicationController.ConcurrentRCSyncs,
		&o.ResourceClaimController.ConcurrentSyncs,
		&o.ResourceQuotaController.ConcurrentResourceQuotaSyncs,
		&o.SAController.ConcurrentSATokenSyncs,
		&o.StatefulSetController.ConcurrentStatefulSetSyncs,
		&o.TTLAfterFinishedController.ConcurrentTTLSyncs,
		&o.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs,
	} {
		*workers = min(*workers, int32(most))
	}
}
