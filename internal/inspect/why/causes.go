package why

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Author is the component in Events that say what this package has found. Rules do not take them for the word of a controller.
const Author = "kedge-why"

// Causes returns a report of each object of some kinds in a namespace that is not well. Unlike Unwell, it also returns objects with
// the cause of another one. If the API does not tell a kind, the error says so, and the reports are those of the other kinds.
func Causes(ctx context.Context, clients Clients, namespace string, kinds []string) (unwell []*Report, err error) {
	w := newWorld(ctx, clients)
	w.many = true
	var faults []error
	for _, k := range known() {
		if !slices.Contains(kinds, k.name) {
			continue
		}
		for _, report := range k.all(w, namespace) {
			if w.fault == nil && !report.Well() {
				unwell = append(unwell, report)
			}
		}
		faults, w.fault = append(faults, w.fault), nil
	}
	return unwell, errors.Join(faults...)
}

// classMissing tells whether the cluster has no class of a name. kind is such as IngressClass. If the user may not read the class, it is
// not missing.
func classMissing[T metav1.Object](w *world, api getter[T], kind, name string) bool {
	_, ok := get(w, api, kind, "", name)
	return !ok && !w.isHidden(kind)
}

// classNames says which classes the cluster has, or how to find out if this user may not list them.
func classNames[L runtime.Object](w *world, api lister[L], kind string) string {
	all, ok := list(w, api, kind+"es", "")
	if !ok {
		return kind + "es of the cluster: kubectl get " + strings.ToLower(kind)
	}
	var names []string
	_ = meta.EachListItem(all, func(item runtime.Object) error {
		names = append(names, item.(metav1.Object).GetName())
		return nil
	})
	return kind + "es of the cluster: " + cmp.Or(few(names), "none")
}
