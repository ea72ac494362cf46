package apiserver

import (
	"context"
	"fmt"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// listed returns clients of cluster roles and their bindings that answer the first Get of each
// name from one list. Upstream's reconciliation gets each of 127 objects, and at the first
// start none of them is there. If an object was made after the list, Create fails, and the
// reconciliation gets the object again.
//
//upstream:relies-on k8s.io/component-helpers/auth/rbac/reconciliation/reconcile_role.go ReconcileRoleOptions.run
//upstream:relies-on k8s.io/component-helpers/auth/rbac/reconciliation/reconcile_rolebindings.go ReconcileRoleBindingOptions.run
func listed(ctx context.Context, api rbacclient.RbacV1Interface) (rbacclient.ClusterRoleInterface, rbacclient.ClusterRoleBindingInterface, error) {
	// The watch cache may answer. If one of its objects is too old, the update of that object
	// fails, and the start hook begins again.
	options := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(bootstrappolicy.Label).String(), ResourceVersion: "0"}
	roles, err := api.ClusterRoles().List(ctx, options)
	if err != nil {
		return nil, nil, fmt.Errorf("list cluster roles: %w", err)
	}
	bindings, err := api.ClusterRoleBindings().List(ctx, options)
	if err != nil {
		return nil, nil, fmt.Errorf("list cluster role bindings: %w", err)
	}
	knownRoles := listedRoles{api.ClusterRoles(), newOnce[rbacv1.ClusterRole]("clusterroles")}
	for i := range roles.Items {
		knownRoles.once.objects[roles.Items[i].Name] = &roles.Items[i]
	}
	knownBindings := listedBindings{api.ClusterRoleBindings(), newOnce[rbacv1.ClusterRoleBinding]("clusterrolebindings")}
	for i := range bindings.Items {
		knownBindings.once.objects[bindings.Items[i].Name] = &bindings.Items[i]
	}
	return knownRoles, knownBindings, nil
}

type listedRoles struct {
	rbacclient.ClusterRoleInterface
	once *once[rbacv1.ClusterRole]
}

func (l listedRoles) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.ClusterRole, error) {
	if object, err, first := l.once.get(name); first {
		return object, err
	}
	return l.ClusterRoleInterface.Get(ctx, name, options)
}

type listedBindings struct {
	rbacclient.ClusterRoleBindingInterface
	once *once[rbacv1.ClusterRoleBinding]
}

func (l listedBindings) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.ClusterRoleBinding, error) {
	if object, err, first := l.once.get(name); first {
		return object, err
	}
	return l.ClusterRoleBindingInterface.Get(ctx, name, options)
}

// once has the objects of a list, and gives each of them out once.
type once[T any] struct {
	resource string
	mu       sync.Mutex
	objects  map[string]*T
	given    map[string]bool
}

func newOnce[T any](resource string) *once[T] {
	return &once[T]{resource: resource, objects: map[string]*T{}, given: map[string]bool{}}
}

// get returns the object of a name, or that there is none, and whether it was asked for the
// name for the first time. Later it returns nothing.
func (o *once[T]) get(name string) (object *T, err error, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.given[name] {
		return nil, nil, false
	}
	o.given[name] = true
	object, ok := o.objects[name]
	if !ok {
		return nil, apierrors.NewNotFound(rbacv1.Resource(o.resource), name), true
	}
	return object, nil, true
}
