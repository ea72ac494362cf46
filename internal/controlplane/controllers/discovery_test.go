package controllers

import (
	"slices"
	"testing"

	migrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/fake"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// preferred is a discovery client that finds two kinds of routes and one built-in kind.
type preferred struct{ *fake.FakeDiscovery }

func (preferred) lists() []*metav1.APIResourceList {
	return []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "used"}, {Name: "unused"}}},
	}
}

func (p preferred) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return p.lists(), nil
}

func (p preferred) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return p.lists(), nil
}

// TestUsedResources hides a kind as long as it is unused.
func TestUsedResources(t *testing.T) {
	unused := true
	client := usedResources{preferred{&fake.FakeDiscovery{Fake: &clienttesting.Fake{}}}, func(resource schema.GroupResource) bool {
		return unused && resource == schema.GroupResource{Group: "example.com", Resource: "unused"}
	}}
	for _, discover := range []func() ([]*metav1.APIResourceList, error){client.ServerPreferredResources, client.ServerPreferredNamespacedResources} {
		for _, test := range []struct {
			unused bool
			want   []string
		}{{true, []string{"pods", "used"}}, {false, []string{"pods", "used", "unused"}}} {
			unused = test.unused
			lists, err := discover()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, list := range lists {
				for _, resource := range list.APIResources {
					got = append(got, resource.Name)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		}
	}
}

// TestMigrating follows a StorageVersionMigration until it has ended.
func TestMigrating(t *testing.T) {
	resource := schema.GroupResource{Group: "example.com", Resource: "routes"}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	migrating := migrating(migrationlisters.NewStorageVersionMigrationLister(indexer))
	if migrating(resource) {
		t.Error("there is a migration before anybody has asked for one")
	}
	for _, test := range []struct {
		condition migrationv1.MigrationConditionType
		want      bool
	}{{"", true}, {migrationv1.MigrationRunning, true}, {migrationv1.MigrationSucceeded, false}, {migrationv1.MigrationFailed, false}} {
		migration := &migrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "one"},
			Spec:       migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource(resource)},
			Status:     migrationv1.StorageVersionMigrationStatus{Conditions: []metav1.Condition{{Type: string(test.condition), Status: metav1.ConditionTrue}}},
		}
		if err := indexer.Update(migration); err != nil {
			t.Fatal(err)
		}
		if got := migrating(resource); got != test.want {
			t.Errorf("with condition %q: got %t, want %t", test.condition, got, test.want)
		}
	}
	if migrating(schema.GroupResource{Group: "example.com", Resource: "others"}) {
		t.Error("the migration counts for another resource")
	}
}
