package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics"
)

// longest is how many bytes of a kubelet's answer are read. A node with 110 pods of three
// containers sends 0.4 MB. A node of an attacker must not take all memory of a server.
const longest = 16 << 20

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
	limited := &io.LimitedReader{R: r, N: longest}
	var summary stats.Summary
	if err := json.NewDecoder(limited).Decode(&summary); err != nil {
		if limited.N <= 0 {
			return nil, fmt.Errorf("the kubelet's summary is longer than %d MB", longest>>20)
		}
		return nil, fmt.Errorf("decode the kubelet's summary: %w", err)
	}
	if before == nil {
		before = &sample{}
	}
	node := &summary.Node
	s := &sample{
		node: measured(node.StartTime, node.CPU, node.Memory, node.Swap, &before.node, settled),
		pods: make(map[types.UID]containers, len(summary.Pods)),
	}
	for i := range summary.Pods {
		pod := &summary.Pods[i]
		uid := types.UID(pod.PodRef.UID)
		if s.pods[uid] == nil {
			s.pods[uid] = make(containers, len(pod.Containers))
		}
		for j := range pod.Containers {
			c := &pod.Containers[j]
			var last *usage
			if known, ok := before.pods[uid][c.Name]; ok {
				last = &known
			}
			s.pods[uid][c.Name] = measured(c.StartTime, c.CPU, c.Memory, c.Swap, last, settled)
		}
	}
	return s, nil
}

// of returns the containers of a pod. The kubelet knows a static pod by the UID that it
// had before its mirror was made in the API.
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
