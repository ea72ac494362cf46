package resourcemetrics

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/metrics"
)

// newStorage returns the resources of a cluster: the nodes a, b and the silent c, and on
// each a pod of its own, one of another, and one that has ended.
func newStorage(t *testing.T) (nodes, pods rest.Storage) {
	t.Helper()
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	nodeObjects, podObjects := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	k := &kubelets{says: map[string]string{}}
	for i, node := range []string{"b", "a", "c"} {
		uid := func(n int) string { return fmt.Sprint(10*i + n) }
		if err := nodeObjects.Add(newNode(node, corev1.ConditionTrue)); err != nil {
			t.Fatal(err)
		}
		for n, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodFailed} {
			if err := podObjects.Add(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", n), Name: "on-" + node, UID: types.UID(uid(n)), Labels: map[string]string{"of": node}},
				Spec:       corev1.PodSpec{NodeName: node},
				Status:     corev1.PodStatus{Phase: phase},
			}); err != nil {
				t.Fatal(err)
			}
		}
		if node == "c" {
			continue
		}
		// Each node also lies about a pod of the other.
		lie := ofPod(map[string]string{"b": "10", "a": "0"}[node], said("main", 100, 9e9, 9e9, 5<<30))
		k.says[node] = summary(ofPod(uid(0), said("main", 100, 9e9, 25e7, 5<<20), said("aside", 100, 9e9, 5e7, 1<<20)),
			ofPod(uid(1), said("main", 100, 9e9, 1e7, 5<<20)), ofPod(uid(2), said("main", 100, 9e9, 25e7, 5<<20)),
			lie)
	}
	group := New(t.Context(), Config{
		Nodes: corelisters.NewNodeLister(nodeObjects), Pods: corelisters.NewPodLister(podObjects), Synced: func() bool { return true },
		Kubelet: func(node *corev1.Node) (string, error) { return node.Name + ":10250", nil }, Transport: k,
	})
	storage := group.VersionedResourcesStorageMap["v1beta1"]
	return storage["nodes"], storage["pods"]
}

// rows lists a resource, and returns what kubectl prints.
func rows(ctx context.Context, t *testing.T, storage rest.Storage, options *internalversion.ListOptions) string {
	t.Helper()
	lister := storage.(rest.Lister)
	list, err := lister.List(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	table, err := lister.ConvertToTable(ctx, list, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) != 4 {
		t.Errorf("the columns are %v", table.ColumnDefinitions)
	}
	var lines []string
	for _, row := range table.Rows {
		if row.Object.Object == nil || len(row.Cells) != len(table.ColumnDefinitions) {
			t.Errorf("a row is %v", row)
		}
		lines = append(lines, strings.TrimSuffix(fmt.Sprintln(row.Cells...), "\n"))
	}
	return strings.Join(lines, "; ")
}

func TestLists(t *testing.T) {
	nodes, pods := newStorage(t)
	selected := func(name string) *internalversion.ListOptions {
		return &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}
	}
	labelled := func(node string) *internalversion.ListOptions {
		return &internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"of": node})}
	}
	const a, b = "a 1500m 4Gi 1m0s", "b 1500m 4Gi 1m0s"
	for _, test := range []struct {
		what      string
		storage   rest.Storage
		namespace string
		options   *internalversion.ListOptions
		want      string
	}{
		{"nodes", nodes, "", nil, a + "; " + b},
		{"nodes by label", nodes, "", labelled("b"), b},
		{"nodes by name", nodes, "", selected("a"), a},
		{"a silent node", nodes, "", selected("c"), ""},
		{"pods", pods, "", nil, "on-a 300m 6Mi 1m0s; on-b 300m 6Mi 1m0s; on-a 10m 5Mi 1m0s; on-b 10m 5Mi 1m0s"},
		{"pods of a namespace", pods, "ns-1", nil, "on-a 10m 5Mi 1m0s; on-b 10m 5Mi 1m0s"},
		{"pods by label", pods, "ns-0", labelled("a"), "on-a 300m 6Mi 1m0s"},
		{"pods by name", pods, "", selected("on-b"), "on-b 300m 6Mi 1m0s; on-b 10m 5Mi 1m0s"},
		{"pods of a silent node", pods, "", selected("on-c"), ""},
		{"pods that have ended", pods, "ns-2", nil, ""},
	} {
		if got := rows(request.WithNamespace(t.Context(), test.namespace), t, test.storage, test.options); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}

func TestGets(t *testing.T) {
	nodes, pods := newStorage(t)
	ctx := request.WithNamespace(t.Context(), "ns-0")
	node, err := nodes.(rest.Getter).Get(ctx, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if node := node.(*metrics.NodeMetrics); node.Name != "a" || node.Labels["of"] != "a" || node.Usage.Cpu().MilliValue() != 1500 || !node.Timestamp.Equal(new(after(100))) {
		t.Errorf("got %+v", node)
	}
	pod, err := pods.(rest.Getter).Get(ctx, "on-b", nil)
	if err != nil {
		t.Fatal(err)
	}
	if pod := pod.(*metrics.PodMetrics); pod.Name != "on-b" || pod.Namespace != "ns-0" || len(pod.Containers) != 2 || pod.Containers[1].Usage.Memory().Value() != 5<<20 {
		t.Errorf("got %+v", pod)
	}
	for _, object := range []struct {
		storage rest.Storage
		name    string
	}{{nodes, "a"}, {pods, "on-b"}} {
		one, err := object.storage.(rest.Getter).Get(ctx, object.name, nil)
		if err != nil {
			t.Fatal(err)
		}
		table, err := object.storage.(rest.Lister).ConvertToTable(ctx, one, &metav1.TableOptions{NoHeaders: true})
		if err != nil || len(table.Rows) != 1 || len(table.ColumnDefinitions) != 0 {
			t.Errorf("%s: got %+v, %v", object.name, table, err)
		}
	}
	for _, object := range []struct {
		storage         rest.Storage
		namespace, name string
		want            string
	}{
		{nodes, "", "c", `nodes.metrics.k8s.io "c" not found`},
		{nodes, "", "d", "not found"},
		{pods, "ns-0", "on-c", `pods.metrics.k8s.io "ns-0/on-c" not found`},
		{pods, "ns-2", "on-a", `pods.metrics.k8s.io "ns-2/on-a" not found`},
		{pods, "ns-0", "on-d", "not found"},
	} {
		_, err := object.storage.(rest.Getter).Get(request.WithNamespace(t.Context(), object.namespace), object.name, nil)
		if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), object.want) {
			t.Errorf("%s: got %v, want %q", object.name, err, object.want)
		}
	}
}

func TestWaits(t *testing.T) {
	nodes, _ := newStorage(t)
	nodes.(*nodeStorage).synced = func() bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := nodes.(rest.Lister).List(ctx, nil); err == nil {
		t.Error("it lists nodes that it does not know yet")
	}
}
