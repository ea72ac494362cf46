package comeback

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// Comparison is what a restored state has beside the cluster that it comes from.
type Comparison struct {
	// Equal counts the objects that are the same in both. Since counts those that the cluster has changed, made or deleted since the state.
	Equal, Since int
	// Different names objects that the cluster has not changed since, and that are other in the state, or missing.
	Different []string
}

// String describes the comparison to a person.
func (c Comparison) String() string {
	text := fmt.Sprintf("%d objects of the backup are as in the cluster, and the cluster has changed %d since", c.Equal, c.Since)
	if len(c.Different) > 0 {
		text += fmt.Sprintf(". %d differ: %s", len(c.Different), strings.Join(c.Different, ", "))
	}
	return text
}

// Compare compares each object of a cluster with that of a restored state, whose newest revision is given. Leases are left out.
func Compare(ctx context.Context, live, restored *rest.Config, revision int64) (Comparison, error) {
	kinds, err := listable(live)
	if err != nil {
		return Comparison{}, err
	}
	for _, cfg := range []*rest.Config{live, restored} {
		cfg.WarningHandler, cfg.QPS = rest.NoWarnings{}, -1 // warnings are about old versions
	}
	first, err := dynamic.NewForConfig(live)
	if err != nil {
		return Comparison{}, fmt.Errorf("make client: %w", err)
	}
	second, err := dynamic.NewForConfig(restored)
	if err != nil {
		return Comparison{}, fmt.Errorf("make client: %w", err)
	}
	var c Comparison
	for _, kind := range kinds {
		// The restored state is read first. Changes of the cluster since then have newer revisions, and count as such.
		then, err := listAll(ctx, second.Resource(kind))
		if err != nil {
			return c, fmt.Errorf("list %s of the backup: %w", kind.GroupResource(), err)
		}
		now, err := listAll(ctx, first.Resource(kind))
		if err != nil {
			return c, fmt.Errorf("list %s: %w", kind.GroupResource(), err)
		}
		c.add(kind, now, then, revision)
	}
	slices.Sort(c.Different)
	return c, nil
}

// listable returns the resources that can be listed. Those that no datastore keeps are left out, and Leases too.
func listable(cfg *rest.Config) ([]schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	lists, err := client.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, fmt.Errorf("find the kinds of the cluster: %w", err)
	}
	var found []schema.GroupVersionResource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("read kinds of the cluster: %w", err)
		}
		for _, resource := range list.APIResources {
			stored := slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "create")
			if stored && resource.Name != "leases" {
				found = append(found, version.WithResource(resource.Name))
			}
		}
	}
	return found, nil
}

// listAll returns the objects of a resource by their names. There are none if there is no such resource.
func listAll(ctx context.Context, client dynamic.ResourceInterface) (map[string]*unstructured.Unstructured, error) {
	found := map[string]*unstructured.Unstructured{}
	pages := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, options) }))
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
		object, ok := item.(*unstructured.Unstructured)
		if !ok {
			return errors.New("the API lists something that is not an object")
		}
		found[object.GetNamespace()+"/"+object.GetName()] = object
		return nil
	})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return nil, nil
	}
	return found, err
}

// add compares the objects of a kind.
func (c *Comparison) add(kind schema.GroupVersionResource, now, then map[string]*unstructured.Unstructured, revision int64) {
	for name, object := range now {
		other := then[name]
		switch {
		case written(object) > revision:
			c.Since++
		case other == nil:
			c.Different = append(c.Different, kind.GroupResource().String()+" "+name+" is missing")
		case written(other) > revision:
			// The API of the restored state has written it at its start.
			c.Equal++
		case reflect.DeepEqual(object.Object, other.Object):
			c.Equal++
		default:
			c.Different = append(c.Different, kind.GroupResource().String()+" "+name)
		}
	}
	for name, other := range then {
		if now[name] == nil && written(other) <= revision {
			c.Since++ // it was deleted
		}
	}
}

// written returns the revision at which an object was written.
func written(object *unstructured.Unstructured) int64 {
	revision, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	return revision
}
