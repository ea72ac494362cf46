// Package localstorage has what the parts of local storage share: names, the node of a
// volume, and how its object is deleted. The driver, the provisioner on each node, and
// the storage controllers use it.
package localstorage

import (
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"
)

const (
	// Driver is the name of kedge's CSI driver.
	Driver = "local.kedge.dev"
	// K3sProvisioner is the provisioner of k3s's StorageClass local-path. kedge makes the
	// volumes of classes that have it, so that k3s's claims and charts work.
	K3sProvisioner = "rancher.io/local-path"
	// TopologyKey is the label with the name of a Node. The kubelet sets it when the
	// driver registers. Volumes and claims have the label too: by it, the API shows them
	// to their own node and not to others. A claim that waits for room on any node has it
	// without a value, so that all nodes see it.
	TopologyKey = "local.kedge.dev/node"
	// Namespace is the namespace of the nodes' capacities.
	Namespace = "kube-system"
	// WhyAnnotation is on the capacity of a node that cannot make volumes of a class, and
	// says why.
	WhyAnnotation = "local.kedge.dev/why"
	// ProvisionerAnnotation is on a claim that needs a volume, and names the driver. The
	// binder of volumes sets it
	// (k8s.io/component-helpers/storage/volume, AnnStorageProvisioner).
	//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go AnnStorageProvisioner AnnSelectedNode
	ProvisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	// NodeAnnotation is on a claim, and names the node on which its volume is to be made.
	// The scheduler sets it (the same package, AnnSelectedNode).
	NodeAnnotation = "volume.kubernetes.io/selected-node"
	// BackupParameter is a parameter of StorageClasses. Its value true or false says whether the schedule of the
	// backup takes the volumes of the class.
	BackupParameter = "backup"
	// VolumeFinalizer keeps a volume's object until its node has deleted the data. It is
	// external-provisioner's finalizer, which the binder of volumes expects of drivers.
	//upstream:relies-on sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/controller.go finalizerPV
	VolumeFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// Provisions tells whether kedge makes the volumes of classes with a provisioner.
func Provisions(provisioner string) bool {
	return provisioner == Driver || provisioner == K3sProvisioner
}

// Parameters returns the parameters of a class for the driver. Sizes of volumes of
// K3sProvisioner are not limited, as in k3s, and nodePath is its name of baseDirectory.
func Parameters(class *storagev1.StorageClass) map[string]string {
	if class.Provisioner != K3sProvisioner {
		return class.Parameters
	}
	parameters := maps.Clone(class.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	if folder, ok := parameters["nodePath"]; ok {
		delete(parameters, "nodePath")
		parameters["baseDirectory"] = folder
	}
	parameters["enforce"] = "none"
	return parameters
}

// JSON returns a copy of client for objects that have no other encoding: those of
// CustomResourceDefinitions.
func JSON(client *rest.Config) *rest.Config {
	client = rest.CopyConfig(client)
	client.ContentConfig = rest.ContentConfig{}
	return client
}
