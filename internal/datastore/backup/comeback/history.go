package comeback

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kedge-dev/kedge/internal/base/deletion"
	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/datastore/backup/rebuild"
)

// Object names objects: of a resource such as deployments, with a name, in a namespace. A resource without namespaces ignores that.
type Object struct{ Resource, Namespace, Name string }

// folders are the resources that the API server keeps in another folder than one of their name.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go SpecialDefaultResourcePrefixes
var folders = map[string]string{"services": "services/specs", "endpoints": "services/endpoints", "nodes": "minions", "ingresses": "ingress"}

// matches tells whether a key of the datastore is one of the object, or says who has deleted it. The resource may be a kind, also in the singular.
func (o Object) matches(key string) bool {
	note, _, noted := deletion.Cut(key)
	if noted {
		key = note
	}
	path, name := cut(key)
	if name != o.Name {
		return false
	}
	for _, resource := range plurals(strings.ToLower(o.Resource)) {
		folder := "/" + resource
		if other, ok := folders[resource]; ok && !noted {
			folder = "/" + other
		}
		if strings.HasSuffix(path, folder) || strings.HasSuffix(path, folder+"/"+o.Namespace) {
			return true
		}
	}
	return false
}

// cut returns what is before the last slash, and after it.
func cut(key string) (before, after string) {
	i := strings.LastIndexByte(key, '/')
	return key[:max(i, 0)], key[i+1:]
}

// plurals returns what a resource may be called in the plural.
func plurals(resource string) []string {
	return []string{resource, resource + "s", resource + "es", strings.TrimSuffix(resource, "y") + "ies"}
}

// Change is a version of an object, beside the one before.
type Change struct {
	Revision int64
	// Time is zero if the object is older than the backup.
	Time time.Time
	// What is "created", "changed" or "deleted".
	What string
	// By is the field manager that wrote it, or the user that has deleted it. It is empty if that is not known.
	By string
	// Fields are the fields that differ, as ".spec.replicas: 1 -> 2".
	Fields []string
}

// History calls each with all changes of an object that the backup has.
func (b *Backup) History(ctx context.Context, o Object, each func(Change) error) error {
	before := map[string]map[string]any{}
	var deleters deleters
	return b.log.History(ctx, o.matches, func(v rebuild.Version) error {
		if _, uid, ok := deletion.Cut(v.Key); ok {
			if v.Value != nil { // the note's end says nothing
				deleters = append(deleters, deleter{uid, foreigntext.Printable(string(v.Value))})
			}
			return nil
		}
		change := Change{Revision: v.Revision, Time: v.Time, What: "changed"}
		if v.Value == nil {
			change.What, change.By = "deleted", deleters.of(before[v.Key])
			delete(before, v.Key)
			return each(change)
		}
		object, err := decode(v.Value)
		if err != nil {
			return fmt.Errorf("read %s at revision %d: %w", v.Key, v.Revision, err)
		}
		change.By = writer(before[v.Key], object)
		if old, ok := before[v.Key]; ok {
			change.Fields = differences(old, object)
		} else {
			change.What, deleters = "created", nil
		}
		before[v.Key] = object
		return each(change)
	})
}

// deleter is a user that has asked to delete the object with a UID.
type deleter struct {
	uid  types.UID
	name string
}

// deleters are the users that have asked since the object was created, in the order of time.
type deleters []deleter

// of returns the user that has asked to delete an object, or "" if none has. The UID of an encrypted object is not known.
func (d deleters) of(object map[string]any) string {
	uid := (&unstructured.Unstructured{Object: object}).GetUID()
	i := slices.IndexFunc(d, func(known deleter) bool { return uid == "" || known.uid == uid })
	if i < 0 {
		return ""
	}
	return d[i].name
}

// encryptedStart begins the values that the API server has encrypted.
const encryptedStart = "k8s:enc:"

// decode reads a value of the datastore. It returns an empty object if the value is encrypted.
func decode(value []byte) (map[string]any, error) {
	if bytes.HasPrefix(value, []byte(encryptedStart)) {
		return map[string]any{}, nil
	}
	if bytes.HasPrefix(value, []byte("{")) {
		var object map[string]any
		return object, json.Unmarshal(value, &object)
	}
	known, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(known)
}

// writer returns the field manager that has made object out of old, which is nil if there was none: the one whose entry differs. If there is none, or
// several, it is the one that has written last.
func writer(old, object map[string]any) string {
	known := (&unstructured.Unstructured{Object: old}).GetManagedFields()
	var name string
	var last time.Time
	for _, m := range (&unstructured.Unstructured{Object: object}).GetManagedFields() {
		same := slices.ContainsFunc(known, func(k metav1.ManagedFieldsEntry) bool { return equality.Semantic.DeepEqual(k, m) })
		if m.Time != nil && !same && !m.Time.Time.Before(last) {
			name, last = m.Manager, m.Time.Time
		}
	}
	if name == "" && len(known) > 0 {
		return writer(nil, object)
	}
	return name
}

// differences returns the fields that differ, sorted. Those that change with each write are left out.
func differences(before, after map[string]any) []string {
	old, now := map[string]string{}, map[string]string{}
	flatten("", before, old)
	flatten("", after, now)
	var found []string
	for _, path := range slices.Sorted(maps.Keys(now)) {
		if was, ok := old[path]; !ok {
			found = append(found, fmt.Sprintf("%s: %s", path, now[path]))
		} else if was != now[path] {
			found = append(found, fmt.Sprintf("%s: %s -> %s", path, was, now[path]))
		}
		delete(old, path)
	}
	for _, path := range slices.Sorted(maps.Keys(old)) {
		found = append(found, fmt.Sprintf("%s: removed", path))
	}
	return found
}

// flatten writes each value that is neither a map nor a list under its path.
func flatten(path string, value any, into map[string]string) {
	switch path {
	case ".metadata.managedFields", ".metadata.resourceVersion":
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			flatten(path+"."+name, inner, into)
		}
	case []any:
		for i, inner := range value {
			flatten(fmt.Sprintf("%s[%d]", path, i), inner, into)
		}
	default:
		text, _ := json.Marshal(value) // a value of JSON
		into[path] = string(text)
	}
}
