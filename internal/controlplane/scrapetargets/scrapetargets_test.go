package scrapetargets

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/metrics"
)

// node is a node with the addresses, each as type=address, and the roles.
func node(name, roles string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, role := range strings.Fields(roles) {
		n.Labels["node-role.kubernetes.io/"+role] = "true"
	}
	for _, address := range addresses {
		kind, ip, _ := strings.Cut(address, "=")
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(kind), Address: ip})
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	return n
}

// ofServers is the EndpointSlice of the Service kubernetes.
func ofServers(addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

var bothPorts = map[metrics.Part]int32{metrics.Controllers: 10257, metrics.Scheduler: 10259}

func TestWanted(t *testing.T) {
	agent := node("agent-1", "", "InternalIP=192.0.2.9")
	for name, test := range map[string]struct {
		ports map[metrics.Part]int32
		nodes []*corev1.Node
		api   []string
		want  string
	}{
		"one server": {
			bothPorts, []*corev1.Node{agent, node("server-1", "control-plane", "InternalIP=192.0.2.1", "Hostname=server-1")}, []string{"192.0.2.1"},
			"kube-controller-manager 192.0.2.1(server-1):10257 kube-scheduler 192.0.2.1(server-1):10259",
		},
		"both families": {
			bothPorts, []*corev1.Node{node("server-1", "control-plane", "InternalIP=fd00::1", "InternalIP=192.0.2.1")}, []string{"fd00::1"},
			"kube-controller-manager fd00::1(server-1):10257 kube-scheduler fd00::1(server-1):10259",
		},
		"servers of all kinds": {
			bothPorts,
			[]*corev1.Node{
				node("server-2", "control-plane etcd", "InternalIP=192.0.2.2", "ExternalIP=198.51.100.2"), agent,
				node("server-1", "control-plane etcd", "InternalIP=192.0.2.1"), node("etcd-1", "etcd", "InternalIP=192.0.2.3"),
				node("new", "control-plane etcd"),
			},
			[]string{"192.0.2.1", "198.51.100.2", "192.0.2.7", "192.0.2.7"},
			"kube-controller-manager 192.0.2.1(server-1),192.0.2.2(server-2),192.0.2.7():10257 " +
				"kube-etcd 192.0.2.3(etcd-1):10250 192.0.2.1(server-1):10250 192.0.2.2(server-2):10250 " +
				"kube-scheduler 192.0.2.1(server-1),192.0.2.2(server-2),192.0.2.7():10259",
		},
		"ports on loopback": {
			nil, []*corev1.Node{node("server-1", "control-plane", "InternalIP=192.0.2.1")}, []string{"192.0.2.1"}, "",
		},
		"the scheduler is off": {
			map[metrics.Part]int32{metrics.Controllers: 12345}, nil, []string{"192.0.2.1"}, "kube-controller-manager 192.0.2.1():12345",
		},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := New(Config{Ports: test.ports}).wanted(test.nodes, []*discoveryv1.EndpointSlice{ofServers(test.api...)})
			var got []string
			for _, part := range []metrics.Part{metrics.Controllers, metrics.Etcd, metrics.Scheduler} {
				if subsets, ok := wanted[part]; !ok {
					t.Errorf("nothing is known of %s", part)
				} else if len(subsets) > 0 {
					got = append(got, string(part)+" "+text(subsets))
				}
			}
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// A report that a node is well makes no difference.
func TestSameTargets(t *testing.T) {
	before := node("server-1", "control-plane", "InternalIP=192.0.2.1")
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"report":  {func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}} }, true},
		"role":    {func(n *corev1.Node) { n.Labels[etcdLabel] = "true" }, false},
		"address": {func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.0.2.2" }, false},
		"port":    {func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10251 }, false},
	} {
		now := before.DeepCopy()
		test.change(now)
		if got := sameTargets(before, now); got != test.want {
			t.Errorf("%s: same is %v", name, got)
		}
	}
}

func text(subsets []corev1.EndpointSubset) string {
	var all []string
	for _, s := range subsets {
		var addresses []string
		for _, a := range s.Addresses {
			node := ""
			if a.NodeName != nil {
				node = *a.NodeName
			}
			addresses = append(addresses, fmt.Sprintf("%s(%s)", a.IP, node))
		}
		all = append(all, fmt.Sprintf("%s:%d", strings.Join(addresses, ","), s.Ports[0].Port))
	}
	return strings.Join(all, " ")
}

// TestLead follows a cluster whose servers come and go, with a Service of the user's.
func TestLead(t *testing.T) {
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler", Namespace: "kube-system", Labels: map[string]string{"mine": "true"}}}
	api := fake.NewClientset(theirs, node("server-1", "control-plane", "InternalIP=192.0.2.1"))
	log := logrus.New()
	log.SetOutput(io.Discard)
	targets := New(Config{
		Informers: func(context.Context) (informers.SharedInformerFactory, error) {
			return informers.NewSharedInformerFactory(api, 0), nil
		},
		Ports: bothPorts,
	})
	targets.api, targets.log = api, logrus.NewEntry(log)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- targets.Lead(ctx, func() {}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	eventually := func(want string) {
		t.Helper()
		var got string
		err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			var all []string
			endpoints, err := api.CoreV1().Endpoints(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for _, e := range endpoints.Items {
				if service, err := api.CoreV1().Services(namespace).Get(ctx, e.Name, metav1.GetOptions{}); err == nil {
					port := service.Spec.Ports[0]
					all = append(all, fmt.Sprintf("%s %s %s:%d %v", e.Name, service.Spec.ClusterIP, port.Name, port.Port, service.Labels[nameLabel]), text(e.Subsets))
				}
			}
			got = strings.Join(all, " ")
			return got == want, nil
		})
		if err != nil {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	const controllers = "kube-controller-manager None https-metrics:10257 kube-controller-manager "
	eventually(controllers + "192.0.2.1(server-1):10257")
	if _, err := api.CoreV1().Nodes().Create(ctx, node("server-2", "control-plane etcd", "InternalIP=192.0.2.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const etcd = " kube-etcd None https-metrics:10250 kube-etcd 192.0.2.2(server-2):10250"
	eventually(controllers + "192.0.2.1(server-1),192.0.2.2(server-2):10257" + etcd)
	if _, err := api.DiscoveryV1().EndpointSlices("default").Create(ctx, ofServers("192.0.2.1", "192.0.2.7"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(controllers + "192.0.2.1(server-1),192.0.2.2(server-2),192.0.2.7():10257" + etcd)
	if err := api.CoreV1().Nodes().Delete(ctx, "server-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(controllers + "192.0.2.1(server-1),192.0.2.7():10257") // there is no controller that deletes Endpoints
	kept, err := api.CoreV1().Services(namespace).Get(ctx, "kube-scheduler", metav1.GetOptions{})
	if err != nil || len(kept.Spec.Ports) != 0 || kept.Labels["mine"] != "true" {
		found, _ := json.Marshal(kept)
		t.Errorf("the user's Service is %s, %v", found, err)
	}
}
