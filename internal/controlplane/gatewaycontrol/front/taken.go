package front

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Taken returns the fronts whose names are taken: somebody else has a Service of the name. kedge does
// not touch such a Service. service returns a Service, or nil.
func Taken(fronts []Front, service func(types.NamespacedName) *corev1.Service) (taken []Front) {
	for _, f := range fronts {
		if of := service(f.Name); of != nil && !IsFront(of) && f.Serves() {
			taken = append(taken, f)
		}
	}
	return taken
}

// TakenMessage says what is wrong with a front whose name is taken, and what to do.
func (f *Front) TakenMessage() string {
	return fmt.Sprintf("kedge needs a Service of the name %s, and there is one that kedge has not made. Rename or delete it: "+
		"`kubectl delete service --namespace %s %s`", f.Name, f.Name.Namespace, f.Name.Name)
}

// Gateways returns NAMESPACE/NAME of the Gateways behind a front. Names of listeners begin with
// that.
func (f *Front) Gateways() map[string]bool {
	names := map[string]bool{}
	if f.Gateway != nil {
		names[f.Gateway.Namespace+"/"+f.Gateway.Name] = true
		return names
	}
	for _, port := range f.Ports {
		for _, listener := range port.Listeners {
			if parts := strings.SplitN(listener.Name, "/", 3); len(parts) == 3 {
				names[parts[0]+"/"+parts[1]] = true
			}
		}
	}
	return names
}
