// Package localstorage is what the parts of local storage agree on: names, which node has
// a volume, and how its object is deleted. The driver, the provisioner of each node
// and what runs once per cluster use it.
package localstorage

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// Driver is the name of kedge's CSI driver.
	Driver = "local.kedge.dev"
	// TopologyKey is the label of a node that says which one it is. The kubelet sets
	// it when the driver registers. Volumes and claims have it too: their node gets
	// them from the API by it, and other nodes do not. A claim that waits for room
	// anywhere has it without a value, so that all nodes get it.
	TopologyKey = "local.kedge.dev/node"
	// Namespace is where the capacities of nodes are.
	Namespace = "kube-system"
	// WhyAnnotation is of the capacity of a node that can make no volumes of a class,
	// and says why.
	WhyAnnotation = "local.kedge.dev/why"
	// ProvisionerAnnotation is of a claim that wants a volume of the driver that it
	// names. The binder of volumes sets it
	// (k8s.io/component-helpers/storage/volume, AnnStorageProvisioner).
	//upstream:relies-on k8s.io/component-helpers/storage/volume/pv_helpers.go AnnStorageProvisioner AnnSelectedNode
	ProvisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	// NodeAnnotation is of a claim whose volume is to be made on the node that it
	// names. The scheduler sets it (the same package, AnnSelectedNode).
	NodeAnnotation = "volume.kubernetes.io/selected-node"
	// VolumeFinalizer keeps a volume's object until its node has deleted the data:
	// external-provisioner's, which the binder of volumes expects of drivers.
	VolumeFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// JSON returns client for objects that have no other encoding: those of
// CustomResourceDefinitions.
func JSON(client *rest.Config) *rest.Config {
	client = rest.CopyConfig(client)
	client.ContentConfig = rest.ContentConfig{}
	return client
}

// OnChange is a handler that gets the newest state of whatever changes.
func OnChange(do func(object any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    do,
		UpdateFunc: func(_, object any) { do(object) },
		DeleteFunc: do,
	}
}
