package controlplane

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/kedge-dev/kedge/internal/datadir"
)

// controllersOptions are upstream's defaults, then what kubeadm or kedge sets,
// then the user's arguments.
func controllersOptions(c *ControllersConfig) (*options.KubeControllerManagerOptions, error) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("configure controllers: %w", err)
	}
	// First, because upstream's flags reset some fields to defaults of their own.
	flags := o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	files := c.Files
	onLoopback(o.SecureServing, files)
	o.Generic.Debugging.EnableProfiling = false
	// All that upstream enables, and the two that bootstrap tokens need.
	o.Generic.Controllers = []string{"*", names.BootstrapSignerController, names.TokenCleanerController}
	// Upstream's way to lead ends the process when it ends.
	o.Generic.LeaderElection.LeaderElect = false

	o.KubeCloudShared.AllocateNodeCIDRs = true
	o.KubeCloudShared.ClusterCIDR = strings.Join(c.Cluster.ClusterCIDR, ",")
	o.NodeIPAMController.ServiceCIDR = strings.Join(c.Cluster.ServiceCIDR, ",")

	// The kubelet's; upstream's default is in /usr, which may be read-only.
	o.PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir = filepath.Join(datadir.KubeletRoot, "volumeplugins")

	o.SAController.RootCAFile = files.ServerCAFile
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

	if err := controllersProgram.parse(flags, c.Args); err != nil {
		return nil, err
	}
	return o, nil
}
