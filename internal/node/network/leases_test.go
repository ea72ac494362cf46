package network

import (
	"slices"
	"testing"

	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// other returns a node that has announced itself.
func other(name, cidr, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			annotationManaged: "true",
			annotationType:    "vxlan",
			annotationIP:      address,
			annotationData:    `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}},
	}
}

func TestLeaseEvents(t *testing.T) {
	l := &leases{config: &subnet.Config{EnableIPv4: true}, log: logrus.WithField("component", name)}
	silent := other("b", "10.42.1.0/24", "192.0.2.2")
	silent.Annotations = nil
	unreadable := other("b", "10.42.1.0/24", "nonsense")

	sent := map[string]lease.Lease{}
	for _, step := range []struct {
		name  string
		nodes []*corev1.Node
		want  []string
	}{
		{"nothing", nil, nil},
		{"a node without annotations", []*corev1.Node{silent}, nil},
		{"a node with a wrong address", []*corev1.Node{unreadable}, nil},
		{"a node", []*corev1.Node{other("b", "10.42.1.0/24", "192.0.2.2")}, []string{"+10.42.1.0/24 192.0.2.2"}},
		{"the same", []*corev1.Node{other("b", "10.42.1.0/24", "192.0.2.2")}, nil},
		{"another address", []*corev1.Node{other("b", "10.42.1.0/24", "192.0.2.3")}, []string{"-10.42.1.0/24 192.0.2.2", "+10.42.1.0/24 192.0.2.3"}},
		{"another range", []*corev1.Node{other("b", "10.42.2.0/24", "192.0.2.3")}, []string{"-10.42.1.0/24 192.0.2.3", "+10.42.2.0/24 192.0.2.3"}},
		{"gone", nil, []string{"-10.42.2.0/24 192.0.2.3"}},
	} {
		var got []string
		for _, event := range l.events(sent, step.nodes) {
			sign := "+"
			if event.Type == lease.EventRemoved {
				sign = "-"
			}
			got = append(got, sign+event.Lease.Subnet.String()+" "+event.Lease.Attrs.PublicIP.String())
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
}

func TestIsSame(t *testing.T) {
	node := func() *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", Annotations: map[string]string{annotationIP: "192.0.2.1"}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.42.1.0/24"}},
		}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"a heartbeat":   {func(n *corev1.Node) { n.Status.Conditions = make([]corev1.NodeCondition, 1) }, true},
		"its address":   {func(n *corev1.Node) { n.Annotations = map[string]string{annotationIP: "192.0.2.2"} }, false},
		"its status":    {func(n *corev1.Node) { n.Status.Addresses = make([]corev1.NodeAddress, 1) }, false},
		"its pods":      {func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.42.2.0/24"} }, false},
		"another of it": {func(n *corev1.Node) { n.UID = "2" }, false},
	} {
		changed := node()
		test.change(changed)
		if got := isSame(node(), changed); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
