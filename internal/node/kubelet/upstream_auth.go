// Follows k8s.io/kubernetes v1.37.2, pkg/kubelet/server/server.go.

package kubelet

import (
	"net/http"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// admit returns the status for a caller, as upstream's filter does for its own paths.
//
//upstream:follows k8s.io/kubernetes/pkg/kubelet/server/server.go Server.InstallAuthFilter
func (f *front) admit(r *http.Request) int {
	caller, known, err := f.auth.AuthenticateRequest(r)
	if err != nil || !known {
		return http.StatusUnauthorized
	}
	for _, right := range f.auth.GetRequestAttributes(r.Context(), caller.User, r) {
		decision, _, err := f.auth.Authorize(r.Context(), right)
		if err != nil {
			return http.StatusInternalServerError
		}
		if decision == authorizer.DecisionAllow {
			return http.StatusOK
		}
	}
	return http.StatusForbidden
}
