package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// DamagedObject is a stored object that cannot be read.
type DamagedObject struct {
	// Name is such as configmaps default/app.
	Name string
	// Why is the error of reading it.
	Why string
	// Withheld says that the API serves no object of this kind until the object is gone.
	Withheld bool
	// Remove is the command that deletes it.
	Remove string
}

// String says what is wrong.
func (d DamagedObject) String() string {
	effect := "Lists leave it out"
	if d.Withheld {
		effect = "The API answers no list of this kind, because controllers and kubelets would act as if the object had been deleted"
	}
	return fmt.Sprintf("%s is damaged in the datastore: %s. %s", d.Name, d.Why, effect)
}

// Repair says what a user can do about it.
func (d DamagedObject) Repair() string {
	return fmt.Sprintf("delete the object and create it again: `%s`. Or restore a snapshot: see `kedge snapshot list`", d.Remove)
}

// withheld are the kinds whose objects may not be left out of a list. Kubelets end what is not
// in the list of pods. Other controllers release or forget what belongs to a Node, a namespace,
// a Service, a volume or a claim that is missing. If an object of one of the
// other kinds is missing, something is allowed that an administrator has forbidden, or all objects of a
// kind disappear.
var withheld = map[schema.GroupResource]bool{
	{Resource: "limitranges"}:            true,
	{Resource: "namespaces"}:             true,
	{Resource: "nodes"}:                  true,
	{Resource: "persistentvolumeclaims"}: true,
	{Resource: "persistentvolumes"}:      true,
	{Resource: "pods"}:                   true,
	{Resource: "resourcequotas"}:         true,
	{Resource: "services"}:               true,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:         true,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"}:   true,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:     true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}:   true,
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:                 true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:                             true,
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:                              true,
	{Group: "policy", Resource: "poddisruptionbudgets"}:                                    true,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:                               true,
}

// damagedObjects are those that were found.
type damagedObjects struct {
	log *logrus.Entry

	mu    sync.Mutex
	found map[string]DamagedObject // by their keys in the datastore
}

func newDamagedObjects(log *logrus.Entry) *damagedObjects {
	return &damagedObjects{log: log, found: map[string]DamagedObject{}}
}

// set takes over what a list found below a key, and logs what is new. If the list was complete, the
// others below the key are damaged no more.
func (d *damagedObjects) set(below string, found map[string]DamagedObject, complete bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, object := range found {
		if _, known := d.found[key]; !known {
			d.log.Errorf("%s. To do: %s", object, object.Repair())
		}
		d.found[key] = object
	}
	if !complete {
		return
	}
	maps.DeleteFunc(d.found, func(key string, _ DamagedObject) bool {
		_, still := found[key]
		return !still && strings.HasPrefix(key, below+"/")
	})
}

// forget notes that an object was deleted.
func (d *damagedObjects) forget(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.found, key)
}

// list returns what was found.
func (d *damagedObjects) list() []DamagedObject {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []DamagedObject
	for _, object := range d.found {
		all = append(all, object)
	}
	slices.SortFunc(all, func(a, b DamagedObject) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Damaged returns the stored objects that cannot be read, as far as they are known: each
// list of a kind finds those of the kind. A datastore that is not in this process is not
// searched.
func (s *Server) Damaged() []DamagedObject { return s.damaged.list() }

// sieve leaves damaged objects out of lists. Upstream answers no list of a kind that has one.
// So its watch cache never begins, and the API server never becomes ready.
//
// Reading or changing a damaged object fails as upstream's API server makes it fail, also for
// the garbage collector, which deletes nothing that belongs to it. Its name stays taken.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/corrupt_obj_deleter.go corruptObjectDeleter.GetList aggregatedStorageError.NewAPIStatusError
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/store.go store.GetList store.processListItem store.finalizeList
type sieve struct {
	storage.Interface
	damaged  *damagedObjects
	resource schema.GroupResource
	// version is one in which the resource is served.
	version string
	// All keys in the datastore begin with storagePrefix. Those of the resource go on with root.
	storagePrefix, root string
}

// newSieve returns a sieve over a store of a resource. newFunc returns an object of it.
func (d *directStorage) newSieve(store storage.Interface, resource schema.GroupResource, storagePrefix, root string, newFunc func() runtime.Object) storage.Interface {
	return &sieve{
		Interface: store, damaged: d.damaged, resource: resource, version: servedVersion(resource, newFunc()),
		storagePrefix: storagePrefix, root: root,
	}
}

// servedVersion returns a version in which objects of a resource are served.
func servedVersion(resource schema.GroupResource, example runtime.Object) string {
	if kind := example.GetObjectKind().GroupVersionKind(); kind.Version != "" && kind.Version != runtime.APIVersionInternal {
		return kind.Version // a custom resource
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(example)
	if err == nil {
		for _, version := range legacyscheme.Scheme.PrioritizedVersionsForGroup(resource.Group) {
			if legacyscheme.Scheme.Recognizes(version.WithKind(kinds[0].Kind)) {
				return version.Version
			}
		}
	}
	return "v1"
}

// GetList implements storage.Interface. If a list of pages meets a damaged object, its client
// has to begin anew, and gets everything at once.
func (s *sieve) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	err := s.Interface.GetList(ctx, key, opts, list)
	causes := damagedKeys(err)
	below := path.Join(s.storagePrefix, key)
	complete := opts.Recursive && opts.Predicate.Limit == 0 && opts.Predicate.Continue == ""
	if len(causes) == 0 {
		if err == nil {
			s.damaged.set(below, nil, complete)
		}
		return err
	}
	found := map[string]DamagedObject{}
	for _, cause := range causes {
		found[cause.Field] = s.describe(cause.Field, cause.Message)
	}
	s.damaged.set(below, found, complete)
	switch {
	case withheld[s.resource]:
		return err
	case opts.Predicate.Continue != "":
		return apierrors.NewResourceExpired("the list has a damaged object: list without a limit")
	}
	return s.listOthers(ctx, key, opts, list)
}

// listOthers lists everything but the damaged objects. Upstream leaves the others in the list
// when it fails, and nothing else: no revision, and no place to continue from.
func (s *sieve) listOthers(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersionMatch != metav1.ResourceVersionMatchExact {
		current, err := s.GetCurrentResourceVersion(ctx)
		if err != nil {
			return err
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = strconv.FormatUint(current, 10), metav1.ResourceVersionMatchExact
	}
	opts.Predicate.Limit = 0
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return err
	}
	reflect.ValueOf(items).Elem().SetZero()
	err = s.Interface.GetList(ctx, key, opts, list)
	if len(damagedKeys(err)) == 0 {
		return err
	}
	revision, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("read revision of list: %w", err)
	}
	if others := reflect.ValueOf(items).Elem(); others.IsNil() {
		others.Set(reflect.MakeSlice(others.Type(), 0, 0))
	}
	return s.Versioner().UpdateList(list, revision, "", nil)
}

// Delete implements storage.Interface.
func (s *sieve) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	err := s.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
	if err == nil {
		s.damaged.forget(path.Join(s.storagePrefix, key))
	}
	return err
}

// describe describes the damaged object of a key in the datastore.
func (s *sieve) describe(key, why string) DamagedObject {
	name := strings.TrimPrefix(strings.TrimPrefix(key, path.Join(s.storagePrefix, s.root)), "/")
	url := path.Join("/apis", s.resource.Group, s.version)
	if s.resource.Group == "" {
		url = path.Join("/api", s.version)
	}
	if namespace, short, namespaced := strings.Cut(name, "/"); namespaced {
		url = path.Join(url, "namespaces", namespace, s.resource.Resource, short)
	} else {
		url = path.Join(url, s.resource.Resource, name)
	}
	return DamagedObject{
		Name: s.resource.String() + " " + name, Why: why, Withheld: withheld[s.resource],
		Remove: fmt.Sprintf(`kubectl delete --raw "%s?ignoreStoreReadErrorWithClusterBreakingPotential=true"`, url),
	}
}

// damagedKeys returns the objects, by their keys in the datastore, that an error of a list
// names. It returns none if there are too many, or if something else is wrong too.
func damagedKeys(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError || status.Status().Details == nil {
		return nil
	}
	causes := status.Status().Details.Causes
	if slices.ContainsFunc(causes, func(cause metav1.StatusCause) bool { return cause.Field == "" }) {
		return nil
	}
	return causes
}
