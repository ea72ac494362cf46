package controlplane

import rbacv1 "k8s.io/client-go/informers/rbac/v1"

// bootstrapRoles returns whether the RBAC authorizer already knows the roles
// that are made at every start and whoever is bound to them. /readyz is
// ok when they have been written; a moment passes until the authorizer's
// informers have read them, in which controllers would be refused.
func bootstrapRoles(informers rbacv1.Interface) func() bool {
	var roles, bindings []string
	for _, role := range clusterRoles() {
		roles = append(roles, role.Name)
	}
	for _, binding := range clusterRoleBindings() {
		bindings = append(bindings, binding.Name)
	}
	knownRoles, knownBindings := informers.ClusterRoles().Lister(), informers.ClusterRoleBindings().Lister()
	return func() bool {
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
