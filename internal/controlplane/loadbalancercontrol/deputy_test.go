package loadbalancercontrol

import (
	"context"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// stand runs do beside a deputy, in a bubble of synctest.
func stand(t *testing.T, do func(h *harness), objects ...runtime.Object) {
	t.Helper()
	beside(t, func(h *harness, cfg Config, factory informers.SharedInformerFactory) func(context.Context) {
		return newDeputy(cfg, newLiveness(cfg), h.api, factory, logrus.WithField("component", "test")).run
	}, do, objects...)
}

// gave makes a Service that the controller has given addresses.
func gave(mode corev1.LoadBalancerIPMode, addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, address := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address, IPMode: &mode})
		}
		s.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition, Status: metav1.ConditionTrue, Reason: reasonConflict}}
	}
}

func TestDeputy(t *testing.T) {
	const gone = misses * askInterval
	external := object("node-2", "192.0.2.2", "")
	external.Status.Addresses = append(external.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"})
	shares := object("node-1", "192.0.2.1", "")
	shares.Status.Addresses = append(shares.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"})
	stand(t, func(h *harness) {
		t.Log("a node is silent, but the elected server lives")
		h.silence("node-2")
		h.want("web", gone+askTimeout, "192.0.2.1", "192.0.2.2")

		t.Log("this server was cut off, and then knows nothing of the nodes")
		h.lose(false, true)
		h.want("web", gone-askInterval, "192.0.2.1", "192.0.2.2")
		h.lose(true, false)
		h.want("web", askInterval, "192.0.2.1", "192.0.2.2")

		t.Log("the elected server is gone, too")
		service := h.want("web", gone, "192.0.2.1")
		if c := service.Status.Conditions; len(c) != 1 || c[0].Reason != reasonConflict {
			t.Errorf("the conditions are %+v", c)
		}
		h.want("pool", 0, "198.51.100.1")
		if c := h.want("last", 0).Status.Conditions; len(c) != 1 || c[0].Status != metav1.ConditionFalse || c[0].Reason != reasonUnavailable {
			t.Errorf("without addresses the conditions are %+v", c)
		}
		shared, err := h.api.CoreV1().Services("default").Get(t.Context(), "shared", metav1.GetOptions{})
		if err != nil || len(shared.Status.LoadBalancer.Ingress) != 1 {
			t.Errorf("the address that another node has, too: %+v %v", shared, err)
		}

		t.Log("the node is back, and the deputy adds nothing")
		h.silence()
		h.want("web", gone, "192.0.2.1")

		t.Log("without a Service nobody is asked")
		for _, name := range []string{"web", "pool", "last", "shared"} {
			if err := h.api.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		asked := h.asked
		time.Sleep(time.Hour)
		if h.asked != asked {
			t.Error("nodes are asked without a Service")
		}
	}, shares, external,
		aService("web", 1, gave(corev1.LoadBalancerIPModeProxy, "192.0.2.1", "192.0.2.2")),
		aService("last", 1, gave(corev1.LoadBalancerIPModeProxy, "192.0.2.2")),
		aService("shared", 1, gave(corev1.LoadBalancerIPModeProxy, "203.0.113.1")),
		aService("pool", 1, gave(corev1.LoadBalancerIPModeVIP, "198.51.100.1")),
		aService("foreign", 1, class("example.com/x"), gave(corev1.LoadBalancerIPModeProxy, "192.0.2.2")))
}

// TestHandover has a deputy that begins to lead. It must not take a node for alive that it
// knows to be gone.
func TestHandover(t *testing.T) {
	beside(t, func(h *harness, cfg Config, factory informers.SharedInformerFactory) func(context.Context) {
		liveness := newLiveness(cfg)
		log := logrus.WithField("component", "test")
		deputy := newDeputy(cfg, liveness, h.api, factory, log)
		controller, err := newTerm(cfg, liveness, h.api, h.pools, factory, h.events, log)
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) {
			following, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			deputy.run(following)
			controller.run(ctx)
		}
	}, func(h *harness) {
		h.silence("node-2")
		h.lose(true, false)
		h.want("web", misses*askInterval+askTimeout, "192.0.2.1")
		for range 120 {
			h.want("web", time.Second, "192.0.2.1")
		}
		h.silence()
		h.want("web", askInterval, "192.0.2.1", "192.0.2.2")
	}, object("node-1", "192.0.2.1", `{"80/tcp":""}`), object("node-2", "192.0.2.2", `{"80/tcp":""}`),
		aService("web", 1, gave(corev1.LoadBalancerIPModeProxy, "192.0.2.1", "192.0.2.2")))
}
