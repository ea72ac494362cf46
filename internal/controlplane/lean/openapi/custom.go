package openapi

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// custom has the documents of established CustomResourceDefinitions. A change of a
// definition is only noted. The next request finds out which documents have
// changed. Like all others, a document is made when somebody asks for it.
type custom struct {
	definitions listers.CustomResourceDefinitionLister
	origin      []byte
	changed     atomic.Bool

	mu sync.Mutex
	all
	versions groupVersions
}

// all are the definitions that documents describe, sorted by name, and a hash of
// them.
type all struct {
	established []*apiextensionsv1.CustomResourceDefinition
	hash        string
}

// watch makes documents of the definitions that the informer has. origin goes into all
// hashes.
func (c *custom) watch(informer informers.CustomResourceDefinitionInformer, origin []byte) error {
	c.definitions, c.origin = informer.Lister(), origin
	c.changed.Store(true)
	_, err := informer.Informer().AddEventHandler(objectcache.OnChange(func(any) { c.changed.Store(true) }))
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	return nil
}

// current notices all changes of definitions, and returns the definitions.
func (c *custom) current() (all, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed.Swap(false) {
		return c.all, nil
	}
	definitions, err := c.definitions.List(labels.Everything())
	if err != nil {
		c.changed.Store(true)
		return all{}, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	established := slices.DeleteFunc(definitions, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established)
	})
	slices.SortFunc(established, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	if err := c.versions.set(c.groupVersions(established)); err != nil {
		c.changed.Store(true)
		return all{}, err
	}
	c.all = all{established, c.hashOf(established)}
	return c.all, nil
}

// groupVersions returns all versions that the definitions serve.
func (c *custom) groupVersions(definitions []*apiextensionsv1.CustomResourceDefinition) map[string]groupVersion {
	type name struct{ group, version string }
	served := map[name][]*apiextensionsv1.CustomResourceDefinition{}
	for _, d := range definitions {
		for _, version := range d.Spec.Versions {
			if version.Served {
				n := name{d.Spec.Group, version.Name}
				served[n] = append(served[n], d)
			}
		}
	}
	versions := map[string]groupVersion{}
	for n, definitions := range served {
		versions["apis/"+n.group+"/"+n.version] = groupVersion{
			hash:     c.hashOf(definitions),
			render:   func() ([]byte, error) { return renderCustomV3(definitions, n.version) },
			document: &kept[document]{},
		}
	}
	return versions
}

// hashOf returns a hash that changes when the documents of definitions can change,
// and is equal on all servers of the same release. A definition has another
// generation after each change of its spec.
func (c *custom) hashOf(definitions []*apiextensionsv1.CustomResourceDefinition) string {
	sum := sha256.New()
	sum.Write(c.origin)
	for _, d := range definitions {
		fmt.Fprintln(sum, d.Name, d.UID, d.Generation)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

// first returns a handler that notices all changes of definitions before it calls
// serve.
func (c *custom) first(serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := c.current(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		serve(w, r)
	})
}
