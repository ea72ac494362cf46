package resourcemetrics

import (
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/metrics"
)

// sample is what a kubelet has said of its node.
type sample struct {
	node usage
	pods map[types.UID]containers
}

// containers are the running containers of a pod, by name.
type containers map[string]usage

// readSample reads a kubelet's summary. before is the sample before, or nil. settled is
// as in measured.
func readSample(r io.Reader, before *sample, settled bool) (*sample, error) {
	if before == nil {
		before = &sample{}
	}
	s := &sample{pods: map[types.UID]containers{}}
	err := readSummary(r, func(f figures) {
		s.node = measured(f, &before.node, settled)
	}, func(uid types.UID, f figures) {
		if s.pods[uid] == nil {
			s.pods[uid] = containers{}
		}
		var last *usage
		if known, ok := before.pods[uid][f.Name]; ok {
			last = &known
		}
		u := measured(f, last, settled)
		if u.at.IsZero() {
			f.Name = "" // one entry says that something is not known, however many there are
		}
		s.pods[uid][f.Name] = u
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// of returns the containers of a pod. The kubelet knows a static pod by the UID that it
// had before its mirror was made in the API.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/pod/mirror_client.go basicMirrorClient.CreateMirrorPod
func (s *sample) of(pod *corev1.Pod) containers {
	if found, ok := s.pods[pod.UID]; ok {
		return found
	}
	if hash, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return s.pods[types.UID(hash)]
	}
	return nil
}

// list returns the usage of all containers in the order of their names, and of the oldest
// measurement its time and window. It returns nil unless all containers are known.
func (c containers) list() (list []metrics.ContainerMetrics, at time.Time, window time.Duration) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		u := c[name]
		if !u.known {
			return nil, time.Time{}, 0
		}
		list = append(list, metrics.ContainerMetrics{Name: name, Usage: u.list()})
		if at.IsZero() || u.at.Before(at) {
			at, window = u.at, u.window
		}
	}
	return list, at, window
}
