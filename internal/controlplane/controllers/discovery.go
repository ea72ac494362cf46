package controllers

import (
	"slices"

	migrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
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

// migrating returns a function that tells whether a StorageVersionMigration of a resource has
// not ended. Its controller reads what to migrate from the garbage collector, so it waits
// until the garbage collector watches the resource, even if there are no objects.
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/storageversionmigrator/storageversionmigrator.go SVMController.sync
//upstream:relies-on k8s.io/kubernetes/pkg/controller/garbagecollector/graph_builder.go GraphBuilder.GetMonitor
func migrating(migrations migrationlisters.StorageVersionMigrationLister) func(schema.GroupResource) bool {
	return func(resource schema.GroupResource) bool {
		// A lister of a cache does not fail.
		all, _ := migrations.List(labels.Everything())
		return slices.ContainsFunc(all, func(migration *migrationv1.StorageVersionMigration) bool {
			of, conditions := migration.Spec.Resource, migration.Status.Conditions
			return of.Group == resource.Group && of.Resource == resource.Resource &&
				!meta.IsStatusConditionTrue(conditions, string(migrationv1.MigrationSucceeded)) &&
				!meta.IsStatusConditionTrue(conditions, string(migrationv1.MigrationFailed))
		})
	}
}
