// Follows k8s.io/kubernetes v1.37.2, pkg/registry/rbac/rest/storage_rbac.go.

package apiserver

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// roles returns the tasks that reconcile upstream's roles and bindings, as
// EnsureRBACPolicy does. Rules and subjects that users have added stay, and roles with
// the annotation rbac.authorization.kubernetes.io/autoupdate=false do not change.
//
//upstream:follows k8s.io/kubernetes/pkg/registry/rbac/rest/storage_rbac.go ensureRBACPolicy
func roles(ctx context.Context, client kubernetes.Interface) (tasks []func() error, err error) {
	api, namespaces := client.RbacV1(), client.CoreV1().Namespaces()
	knownRoles, knownBindings, err := listed(ctx, api)
	if err != nil {
		return nil, err
	}
	role := func(name string, owner reconciliation.RuleOwner, modifier reconciliation.RuleOwnerModifier) {
		tasks = append(tasks, func() error {
			_, err := (&reconciliation.ReconcileRoleOptions{Role: owner, Client: modifier, Confirm: true}).Run()
			if err != nil {
				return fmt.Errorf("role %s: %w", name, err)
			}
			return nil
		})
	}
	binding := func(name string, binding reconciliation.RoleBinding, modifier reconciliation.RoleBindingModifier) {
		tasks = append(tasks, func() error {
			_, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: modifier, Confirm: true}).Run()
			if err != nil {
				return fmt.Errorf("role binding %s: %w", name, err)
			}
			return nil
		})
	}
	for _, r := range clusterRoles() {
		role(r.Name, reconciliation.ClusterRoleRuleOwner{ClusterRole: &r}, reconciliation.ClusterRoleModifier{Client: knownRoles})
	}
	for _, b := range clusterRoleBindings() {
		binding(b.Name, reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &b},
			reconciliation.ClusterRoleBindingClientAdapter{Client: knownBindings})
	}
	for _, in := range bootstrappolicy.NamespaceRoles() {
		for _, r := range in {
			role(r.Name, reconciliation.RoleRuleOwner{Role: &r}, reconciliation.RoleModifier{Client: api, NamespaceClient: namespaces})
		}
	}
	for _, in := range bootstrappolicy.NamespaceRoleBindings() {
		for _, b := range in {
			binding(b.Name, reconciliation.RoleBindingAdapter{RoleBinding: &b},
				reconciliation.RoleBindingClientAdapter{Client: api, NamespaceClient: namespaces})
		}
	}
	return tasks, nil
}
