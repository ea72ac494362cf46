package resourcemetrics

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// nodeStorage is the resource nodes. It implements rest.Getter, rest.Lister and rest.Scoper.
type nodeStorage struct {
	storage
	lister corelisters.NodeLister
	reader *reader
}

// New implements rest.Storage.
func (*nodeStorage) New() runtime.Object { return &metrics.NodeMetrics{} }

// NewList implements rest.Lister.
func (*nodeStorage) NewList() runtime.Object { return &metrics.NodeMetricsList{} }

// Kind implements rest.KindProvider.
func (*nodeStorage) Kind() string { return "NodeMetrics" }

// NamespaceScoped implements rest.Scoper.
func (*nodeStorage) NamespaceScoped() bool { return false }

// Get implements rest.Getter.
func (n *nodeStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := n.wait(ctx); err != nil {
		return nil, err
	}
	node, err := n.lister.Get(name)
	if err != nil {
		return nil, err
	}
	items, err := n.of(ctx, []*corev1.Node{node})
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, apierrors.NewNotFound(metrics.Resource("nodes"), name)
	}
	return &items[0], nil
}

// List implements rest.Lister.
func (n *nodeStorage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := n.wait(ctx); err != nil {
		return nil, err
	}
	nodes, err := n.lister.List(byLabels(options))
	if err != nil {
		return nil, err
	}
	items, err := n.of(ctx, choose(nodes, options))
	if err != nil {
		return nil, err
	}
	return &metrics.NodeMetricsList{Items: items}, nil
}

// of returns the figures of nodes, without the nodes of which there are none.
func (n *nodeStorage) of(ctx context.Context, nodes []*corev1.Node) ([]metrics.NodeMetrics, error) {
	samples, err := n.reader.read(ctx, nodes)
	if err != nil {
		return nil, err
	}
	items := []metrics.NodeMetrics{}
	for _, node := range nodes {
		sample := samples[node.Name]
		if sample == nil || !sample.node.known {
			continue
		}
		items = append(items, metrics.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(sample.node.at),
			Window:     metav1.Duration{Duration: sample.node.window},
			Usage:      sample.node.list(),
		})
	}
	return items, nil
}

// ConvertToTable implements rest.TableConvertor.
func (*nodeStorage) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	t := newTable(options)
	switch object := object.(type) {
	case *metrics.NodeMetrics:
		t.add(object, object.Name, object.Window, object.Usage)
	case *metrics.NodeMetricsList:
		t.ListMeta = object.ListMeta
		for i := range object.Items {
			item := &object.Items[i]
			t.add(item, item.Name, item.Window, item.Usage)
		}
	}
	return &t.Table, nil
}
