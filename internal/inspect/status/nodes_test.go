package status

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

func TestDescribeCluster(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	node := func(name string, conditions ...corev1.NodeCondition) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{roleLabel + "control-plane": "true"}},
			Status: corev1.NodeStatus{
				Conditions: conditions,
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
				NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1"},
			},
		}
	}
	is := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Message: "because", LastHeartbeatTime: metav1.NewTime(now.Add(-time.Hour))}
	}
	lease := func(name string, age time.Duration) coordinationv1.Lease {
		renewed := metav1.NewMicroTime(now.Add(-age))
		return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	}
	volume := func(claim, node string) corev1.PersistentVolume {
		v := corev1.PersistentVolume{}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
		if claim != "" {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim}
		}
		return v
	}
	got := describeCluster(
		[]corev1.Node{
			node("full", is(corev1.NodeReady, corev1.ConditionTrue), is(corev1.NodeDiskPressure, corev1.ConditionTrue), is(corev1.NodeMemoryPressure, corev1.ConditionFalse)),
			node("dead", is(corev1.NodeReady, corev1.ConditionUnknown)),
			node("broken", is(corev1.NodeReady, corev1.ConditionFalse)),
			node("new"),
			node("well", is(corev1.NodeReady, corev1.ConditionTrue)),
		},
		[]coordinationv1.Lease{lease("dead", 10*time.Minute), lease("well", 4*time.Second)},
		[]corev1.PersistentVolume{volume("a", "well"), volume("b", "dead"), volume("c", "gone"), volume("", "gone"), {}},
		now)
	var names []string
	for _, n := range got.Nodes {
		names = append(names, n.Name)
	}
	if !slices.Equal(names, []string{"broken", "dead", "full", "new", "well"}) {
		t.Errorf("the nodes are %v", names)
	}
	well := got.Nodes[4]
	if !well.Ready || well.Address != "192.0.2.1" || well.Version != "v1" || !slices.Equal(well.Roles, []string{"control-plane"}) || now.Sub(well.Heartbeat) != 4*time.Second {
		t.Errorf("got %+v", well)
	}
	var problems []string
	for _, p := range got.Problems {
		problems = append(problems, p.What)
		if p.Do == "" {
			t.Errorf("nothing is to do about: %s", p.What)
		}
	}
	want := []string{
		"node full has DiskPressure: because",
		"node dead does not answer; it was last heard of 10m0s ago",
		"node broken is not ready: because",
		"node new has not reported its state yet",
		"the data of claim default/b are on node dead, which is not ready",
		"the data of claim default/c are on node gone, which is no longer in the cluster",
	}
	if !slices.Equal(problems, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(problems, "\n"), strings.Join(want, "\n"))
	}
}

func TestReadCluster(t *testing.T) {
	port := int32(6443)
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi"}}, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Ports:      []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.2"}}, {Addresses: []string{"192.0.2.1"}}},
	})
	got, err := readCluster(t.Context(), client)
	if err != nil || len(got.Nodes) != 1 || !slices.Equal(got.Servers, []string{"192.0.2.1:6443", "192.0.2.2:6443"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNetworkNotes(t *testing.T) {
	if notes, err := networkNotes(t.Context(), fake.NewClientset()); err != nil || len(notes) > 0 {
		t.Errorf("without NetworkPolicies: got notes %q, %v, want none", notes, err)
	}
	notes, err := networkNotes(t.Context(), fake.NewClientset(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}))
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "the cluster has 1") {
		t.Errorf("with a NetworkPolicy: got notes %q, %v, want one", notes, err)
	}
}

func TestClusterOfNoAPI(t *testing.T) {
	for _, states := range [][]component.Status{nil, {{Name: "api", State: component.Starting}}} {
		ask := ClusterOf(&rest.Config{Host: "http://127.0.0.1:1"}, "api", false, func() []component.Status { return states })
		if got := ask(context.Background()); !strings.Contains(got.Fault, "not ready") {
			t.Errorf("got %+v", got)
		}
	}
	ask := ClusterOf(&rest.Config{Host: "http://127.0.0.1:1"}, "api", false, func() []component.Status {
		return []component.Status{{Name: "api", State: component.Ready}}
	})
	if got := ask(context.Background()); !strings.Contains(got.Fault, "cannot read the cluster") {
		t.Errorf("got %+v", got)
	}
}
