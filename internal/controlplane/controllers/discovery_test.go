package controllers

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
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
