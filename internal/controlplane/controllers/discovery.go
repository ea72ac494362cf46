package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// watchers are the names of the clients by which the garbage collector and the controller of
// quotas discover kinds. They watch every kind that they find, and look again every 30
// seconds.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kube-controller-manager/app/core.go newGarbageCollectorController newResourceQuotaController
var watchers = []string{"generic-garbage-collector", "resourcequota-controller"}

// usedResources hides custom resources of which there are no objects, so that nobody watches
// them. Such a watch takes 0.3 MiB. A kind appears within 30 seconds after its first object,
// as it does after its definition.
type usedResources struct {
	discovery.DiscoveryInterface
	unused func(schema.GroupResource) bool
}

// ServerPreferredResources implements discovery.ServerResourcesInterface for the garbage
// collector.
func (u usedResources) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	lists, err := u.DiscoveryInterface.ServerPreferredResources()
	return u.used(lists), err
}

// ServerPreferredNamespacedResources implements discovery.ServerResourcesInterface for quotas.
func (u usedResources) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	lists, err := u.DiscoveryInterface.ServerPreferredNamespacedResources()
	return u.used(lists), err
}

// used returns the lists without resources that are unused. It may return lists that were
// given. A list that cannot be read stays as it is.
func (u usedResources) used(lists []*metav1.APIResourceList) []*metav1.APIResourceList {
	for i, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		kept := *list
		kept.APIResources = nil
		for _, resource := range list.APIResources {
			if !u.unused(version.WithResource(resource.Name).GroupResource()) {
				kept.APIResources = append(kept.APIResources, resource)
			}
		}
		lists[i] = &kept
	}
	return lists
}
