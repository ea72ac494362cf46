package loadbalancercontrol

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// TestExternal has Services whose external addresses belong to somebody else. The first one has so
// many that no text with all of them would fit a condition or an Event.
func TestExternal(t *testing.T) {
	service := func(name string, addresses ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{ExternalIPs: addresses}}
	}
	var many []string
	for i := range 250 {
		many = append(many, fmt.Sprintf("10.42.1.%d", i))
	}
	refused := map[string]string{
		"many": "10.42.1.0 is in the range of the addresses of pods or Services", "service": "10.43.0.10 is in the range of the addresses of pods or Services",
		"node": "192.0.2.1 is an address of node node-1", "loopback": "127.0.0.1 is a loopback address", "free": "",
	}
	run(t, func(h *harness) {
		synctest.Wait()
		for name, want := range refused {
			got, err := h.api.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			condition := meta.FindStatusCondition(got.Status.Conditions, servicelb.ExternalCondition)
			switch {
			case want == "" && condition == nil:
			case want == "" || condition == nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, want) || len(condition.Message) > 1024:
				t.Errorf("%s: the condition is %+v, want %q", name, condition, want)
			}
		}
	}, service("many", many...), service("service", "10.43.0.10"), service("node", "192.0.2.1"), service("loopback", "127.0.0.1"),
		service("free", "198.51.100.1"), object("node-1", "192.0.2.1", ""))
}
