package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

func TestExternalAddresses(t *testing.T) {
	cfg := testConfig()
	cfg.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	k, err := New(cfg)
	must(t, err)
	if !k.ownsAddresses || k.server.CloudProvider != externalProvider {
		t.Fatalf("the kubelet would overwrite the addresses: cloud-provider is %q", k.server.CloudProvider)
	}
	const want = "[{InternalIP 192.0.2.1} {ExternalIP 203.0.113.7} {Hostname node-1}]"
	client := fake.NewClientset()
	nodes := client.CoreV1().Nodes()
	if k.correctAddresses(t.Context(), client) {
		t.Error("correctAddresses accepts a missing node")
	}

	// The kubelet creates the node like this.
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.NodeName},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "own", Effect: corev1.TaintEffectNoExecute},
			{Key: cloudproviderapi.TaintExternalCloudProvider, Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
	_, err = (&kubeletClient{Interface: client, addresses: k.nodeAddresses()}).CoreV1().Nodes().Create(t.Context(), made, metav1.CreateOptions{})
	must(t, err)
	node, err := nodes.Get(t.Context(), cfg.NodeName, metav1.GetOptions{})
	must(t, err)
	if fmt.Sprint(node.Status.Addresses) != want {
		t.Errorf("it was registered with the addresses %v, want %s", node.Status.Addresses, want)
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "own" {
		t.Errorf("got taints %v, want own alone", node.Spec.Taints)
	}

	// A later start must not ask webhooks about a Node that exists, whoever sets its addresses.
	client.ClearActions()
	_, err = (&kubeletClient{Interface: client}).CoreV1().Nodes().Create(t.Context(), made, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) || len(client.Actions()) != 1 || client.Actions()[0].GetVerb() != "get" {
		t.Errorf("the kubelet gets %v after %v, want that the node exists", err, client.Actions())
	}

	if registrationFault("node-1", err) != nil || registrationFault("node-1", nil) != nil {
		t.Error("a node that is registered is a fault")
	}
	if fault := registrationFault("node-1", errors.New("failed calling webhook")); fault == nil || !strings.Contains(fault.Error(), "delete its configuration") {
		t.Errorf("a node that a webhook refuses: status says %v", fault)
	}

	// The node is as an earlier start left it.
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}, {Type: corev1.NodeHostName, Address: "node-1"}}
	_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	if !k.correctAddresses(t.Context(), client) {
		t.Error("the addresses were not corrected")
	}
	node, err = nodes.Get(t.Context(), cfg.NodeName, metav1.GetOptions{})
	must(t, err)
	if fmt.Sprint(node.Status.Addresses) != want {
		t.Errorf("the addresses were corrected to %v, want %s", node.Status.Addresses, want)
	}

	// The user's own cloud controller sets the addresses.
	cfg.Args = []string{"cloud-provider=external"}
	k, err = New(cfg)
	must(t, err)
	if k.ownsAddresses {
		t.Error("kedge and a cloud's controller would both set the addresses")
	}
}

// TestCloudController leaves addresses and the provider ID to a cloud controller of the user's.
func TestCloudController(t *testing.T) {
	for name, test := range map[string]struct {
		cloud    bool
		args     []string
		provider string
		id       string
	}{
		"none":             {false, nil, "", "kedge://node-1"},
		"by the setting":   {true, nil, externalProvider, ""},
		"by an argument":   {false, []string{"cloud-provider=external"}, externalProvider, ""},
		"with an ID given": {true, []string{"provider-id=aws:///i-1"}, externalProvider, "aws:///i-1"},
	} {
		cfg := testConfig()
		cfg.CloudController, cfg.Args = test.cloud, test.args
		cfg.ExternalIPs = nil
		k, err := New(cfg)
		must(t, err)
		if k.ownsAddresses || k.server.CloudProvider != test.provider || k.server.ProviderID != test.id {
			t.Errorf("%s: got %q, %q, %t", name, k.server.CloudProvider, k.server.ProviderID, k.ownsAddresses)
		}
	}
}
