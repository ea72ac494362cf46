package kubelet

import (
	dto "github.com/prometheus/client_model/go"
	"k8s.io/kubernetes/pkg/kubelet/metrics"
)

// Counts returns how many pods run on this node, and how many containers the kubelet has started since it began.
func Counts() (pods, started float64) {
	return value(metrics.RunningPodCount), value(metrics.StartedContainersTotal.WithLabelValues(metrics.Container))
}

// value reads a gauge or a counter. It is 0 until the kubelet has registered its metrics.
func value(metric any) float64 {
	readable, ok := metric.(interface{ Write(*dto.Metric) error })
	var read dto.Metric
	if !ok || readable.Write(&read) != nil {
		return 0
	}
	switch {
	case read.Gauge != nil:
		return read.Gauge.GetValue()
	case read.Counter != nil:
		return read.Counter.GetValue()
	}
	return 0
}
