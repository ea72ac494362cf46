package resourcemetrics

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// podStorage is the resource pods. It implements rest.Getter, rest.Lister and rest.Scoper.
type podStorage struct {
	storage
	nodes  corelisters.NodeLister
	lister corelisters.PodLister
	reader *reader
}

// New implements rest.Storage.
func (*podStorage) New() runtime.Object { return &metrics.PodMetrics{} }

// NewList implements rest.Lister.
func (*podStorage) NewList() runtime.Object { return &metrics.PodMetricsList{} }

// Kind implements rest.KindProvider.
func (*podStorage) Kind() string { return "PodMetrics" }

// NamespaceScoped implements rest.Scoper.
func (*podStorage) NamespaceScoped() bool { return true }

// Get implements rest.Getter.
func (p *podStorage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	namespace := request.NamespaceValue(ctx)
	pod, err := p.lister.Pods(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	items, err := p.of(ctx, []*corev1.Pod{pod})
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, apierrors.NewNotFound(metrics.Resource("pods"), namespace+"/"+name)
	}
	return &items[0], nil
}

// List implements rest.Lister.
func (p *podStorage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	pods, err := p.lister.Pods(request.NamespaceValue(ctx)).List(byLabels(options))
	if err != nil {
		return nil, err
	}
	items, err := p.of(ctx, choose(pods, options))
	if err != nil {
		return nil, err
	}
	return &metrics.PodMetricsList{Items: items}, nil
}

// of returns the figures of pods, without the pods of which there are none. It asks only
// the nodes of these pods, and believes a node only about pods that are bound to it.
func (p *podStorage) of(ctx context.Context, pods []*corev1.Pod) ([]metrics.PodMetrics, error) {
	asked := map[string]bool{}
	var nodes []*corev1.Node
	for _, pod := range pods {
		if name := pod.Spec.NodeName; pod.Status.Phase == corev1.PodRunning && !asked[name] {
			asked[name] = true
			if node, err := p.nodes.Get(name); err == nil {
				nodes = append(nodes, node)
			}
		}
	}
	samples, err := p.reader.read(ctx, nodes)
	if err != nil {
		return nil, err
	}
	items := []metrics.PodMetrics{}
	for _, pod := range pods {
		sample := samples[pod.Spec.NodeName]
		if pod.Status.Phase != corev1.PodRunning || sample == nil {
			continue
		}
		containers, at, window := sample.of(pod).list()
		if len(containers) == 0 {
			continue
		}
		items = append(items, metrics.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(at),
			Window:     metav1.Duration{Duration: window},
			Containers: containers,
		})
	}
	return items, nil
}

// ConvertToTable implements rest.TableConvertor.
func (*podStorage) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	t := newTable(options)
	switch object := object.(type) {
	case *metrics.PodMetrics:
		t.add(object, object.Name, object.Window, sum(object.Containers))
	case *metrics.PodMetricsList:
		t.ListMeta = object.ListMeta
		for i := range object.Items {
			item := &object.Items[i]
			t.add(item, item.Name, item.Window, sum(item.Containers))
		}
	}
	return &t.Table, nil
}

// sum returns what all containers use together.
func sum(containers []metrics.ContainerMetrics) corev1.ResourceList {
	total := corev1.ResourceList{}
	for _, container := range containers {
		for name, quantity := range container.Usage {
			all := total[name]
			all.Add(quantity)
			total[name] = all
		}
	}
	return total
}
