package storage

import (
	"net/http"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	snapshots "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	k8smetrics "k8s.io/component-base/metrics"
)

// snapshotResync is upstream's resync period (cmd/snapshot-controller/main.go).
//
//upstream:relies-on github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller/main.go
const snapshotResync = 15 * time.Minute

// binder is upstream's snapshot-controller.
type binder interface {
	Run(workers int, stop <-chan struct{}, running *sync.WaitGroup)
}

// newBinder makes the controller that binds VolumeSnapshots of all drivers to
// their contents. It names the node that has to make a content by a label.
func newBinder(api kubernetes.Interface, client snapshotclient.Interface, factory informers.SharedInformerFactory, custom snapshotinformers.SharedInformerFactory) binder {
	kinds, core := custom.Snapshot().V1(), factory.Core().V1()
	retries := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, lastRetry)
	}
	return snapshots.NewCSISnapshotCommonController(client, api,
		kinds.VolumeSnapshots(), kinds.VolumeSnapshotContents(), kinds.VolumeSnapshotClasses(), nil, nil, nil,
		core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes(),
		unmeasured{}, snapshotResync, retries(), retries(), nil, nil, true, true, false)
}

// unmeasured records no metrics: upstream's implementation runs a timer as long
// as the process lives (external-snapshotter, pkg/metrics/metrics.go, init).
//
//upstream:relies-on github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics/metrics.go
type unmeasured struct{}

func (unmeasured) PrepareMetricsPath(*http.ServeMux, string, promhttp.Logger) error { return nil }
func (unmeasured) OperationStart(metrics.OperationKey, metrics.OperationValue)      {}
func (unmeasured) DropOperation(metrics.OperationKey)                               {}
func (unmeasured) RecordMetrics(metrics.OperationKey, metrics.OperationStatus, string) {
}
func (unmeasured) RecordVolumeGroupSnapshotMetrics(metrics.OperationKey, metrics.OperationStatus, string) {
}
func (unmeasured) GetRegistry() k8smetrics.KubeRegistry { return nil }
