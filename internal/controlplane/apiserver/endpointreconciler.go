package apiserver

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// removalPatience is how long a stopping server tries to remove itself from the
// endpoints of the Service kubernetes. Without a quorum it cannot. Then the entry
// expires (DefaultEndpointReconcilerTTL, 15 s).
const removalPatience = 3 * time.Second

// endpointReconciler is upstream's with less patience at the stop. Upstream waits 20 s
// for it (pkg/controlplane/controller/kubernetesservice/controller.go, Stop).
//
//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice/controller.go Controller.Stop
type endpointReconciler struct {
	reconcilers.EndpointReconciler
	stopping atomic.Bool
}

// StopReconciling implements reconcilers.EndpointReconciler.
func (r *endpointReconciler) StopReconciling() {
	r.stopping.Store(true)
	r.EndpointReconciler.StopReconciling()
}

// RemoveEndpoints implements reconcilers.EndpointReconciler. At the start, when it
// removes an entry of the previous process, it waits as long as upstream.
func (r *endpointReconciler) RemoveEndpoints(service string, ip net.IP, ports []corev1.EndpointPort) error {
	if !r.stopping.Load() {
		return r.EndpointReconciler.RemoveEndpoints(service, ip, ports)
	}
	removed := make(chan error, 1)
	go func() { removed <- r.EndpointReconciler.RemoveEndpoints(service, ip, ports) }()
	select {
	case err := <-removed:
		return err
	case <-time.After(removalPatience):
		return fmt.Errorf("the datastore has not answered for %s", removalPatience)
	}
}
