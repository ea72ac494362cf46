package apiserver

import (
	"slices"

	rbacv1 "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// allRoles returns a function that tells whether the RBAC authorizer has read all roles
// and bindings: those in the datastore, and those that every start creates. /readyz is
// ok as soon as they are written. Until the authorizer's informers have read them, the
// authorizer forbids what is allowed.
func allRoles(informers rbacv1.Interface) func() bool {
	var roles, bindings []string
	for _, role := range clusterRoles() {
		roles = append(roles, role.Name)
	}
	for _, binding := range clusterRoleBindings() {
		bindings = append(bindings, binding.Name)
	}
	stored := []cache.InformerSynced{
		informers.Roles().Informer().HasSynced, informers.RoleBindings().Informer().HasSynced,
		informers.ClusterRoles().Informer().HasSynced, informers.ClusterRoleBindings().Informer().HasSynced,
	}
	knownRoles, knownBindings := informers.ClusterRoles().Lister(), informers.ClusterRoleBindings().Lister()
	return func() bool {
		if slices.ContainsFunc(stored, func(synced cache.InformerSynced) bool { return !synced() }) {
			return false
		}
		for _, name := range roles {
			if _, err := knownRoles.Get(name); err != nil {
				return false
			}
		}
		for _, name := range bindings {
			if _, err := knownBindings.Get(name); err != nil {
				return false
			}
		}
		return true
	}
}
