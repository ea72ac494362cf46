package resourcemetrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// said returns what a kubelet says of a container, or of a node.
func said(name string, at int, total, rate, memory uint64) string {
	return fmt.Sprintf(`{"name": %q, "startTime": "2026-05-01T12:00:00Z",
		"cpu": {"time": %[2]q, "usageNanoCores": %[4]d, "usageCoreNanoSeconds": %[3]d},
		"memory": {"time": %[2]q, "usageBytes": 99999999, "workingSetBytes": %[5]d},
		"swap": {"time": %[2]q, "swapUsageBytes": 0}}`, name, after(at).Format(time.RFC3339), total, rate, memory)
}

// ofPod returns what a kubelet says of a pod.
func ofPod(uid string, containers ...string) string {
	return fmt.Sprintf(`{"podRef": {"name": "p", "namespace": "n", "uid": %q}, "startTime": "2026-05-01T12:00:00Z", "containers": [%s]}`,
		uid, strings.Join(containers, ","))
}

// summary returns what a kubelet says of its node and its pods.
func summary(pods ...string) string {
	return fmt.Sprintf(`{"node": %s, "pods": [%s]}`, said("n", 100, 9e12, 15e8, 4<<30), strings.Join(pods, ","))
}

func TestSample(t *testing.T) {
	text := summary(
		ofPod("1", said("main", 100, 9e9, 25e7, 5<<20), said("aside", 90, 9e9, 5e7, 1<<20)),
		ofPod("2", said("main", 100, 9e9, 25e7, 5<<20), said("starting", 3, 9e9, 0, 5<<20)),
		ofPod("3"),
		ofPod("static", said("main", 100, 9e9, 1, 1)))
	s, err := readSample(strings.NewReader(text), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if u := s.node; !u.known || u.rate != 15e8 || u.memory != 4<<30 || u.swap == nil {
		t.Errorf("the node uses %+v", u)
	}
	pod := func(uid string, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Annotations: annotations}}
	}
	list, at, window := s.of(pod("1", nil)).list()
	if len(list) != 2 || list[0].Name != "aside" || list[1].Name != "main" || list[1].Usage.Cpu().MilliValue() != 250 ||
		!at.Equal(after(90).Time) || window != kubeletWindow {
		t.Errorf("got %v at %v over %v", list, at, window)
	}
	for _, uid := range []string{"2", "3", "4"} {
		if list, _, _ := s.of(pod(uid, nil)).list(); len(list) != 0 {
			t.Errorf("of pod %s: got %v", uid, list)
		}
	}
	mirror := pod("mirror", map[string]string{corev1.MirrorPodAnnotationKey: "static"})
	if list, _, _ := s.of(mirror).list(); len(list) != 1 {
		t.Errorf("of a static pod: got %v", list)
	}

	// The next sample computes the rate that the kubelet lacks.
	next, err := readSample(strings.NewReader(summary(ofPod("1", said("main", 110, 14e9, 0, 5<<20)))), s, false)
	if err != nil {
		t.Fatal(err)
	}
	list, _, window = next.of(pod("1", nil)).list()
	if len(list) != 1 || list[0].Usage.Cpu().MilliValue() != 500 || window != 10*time.Second {
		t.Errorf("got %v over %v", list, window)
	}
}

// TestOddSummaries gets bytes from kubelets that are broken or hostile.
func TestOddSummaries(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "decode",
		"[]":                             "decode",
		`{"node": 1}`:                    "decode",
		`{"pods": [{}]`:                  "decode",
		`{"pods": {}}`:                   "want [",
		`{"pods": [{"containers": {}}]}`: "want [",
		`{"node": {"nodeName": "` + strings.Repeat("x", longest) + `"}}`: "longer than 8 MB",
	} {
		if _, err := readSample(strings.NewReader(text), nil, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{
		`{"pods": [{}, {"containers": [{}, {}]}]}`,
		`{"pods": [{"podRef": null, "containers": [{"name": "a"}, {"name": "b"}], "x": [1]}, null, {"containers": null}], "x": {}}`,
	} {
		s, err := readSample(strings.NewReader(text), nil, true)
		if err != nil || s.node.known || len(s.pods) != 1 || len(s.pods[""]) != 1 {
			t.Errorf("%s: got %+v, %v", text, s, err)
		}
	}
	for _, text := range []string{`null`, `{"pods": null, "node": null}`, `{}`} {
		if s, err := readSample(strings.NewReader(text), nil, true); err != nil || s.node.known || len(s.pods) != 0 {
			t.Errorf("%s: got %+v, %v", text, s, err)
		}
	}
}

// TestHugeSummary keeps nothing of millions of containers without figures.
func TestHugeSummary(t *testing.T) {
	const begin, end = `{"pods": [{"podRef": {"uid": "1"}, "containers": [{}`, `]}]}`
	text := begin + strings.Repeat(",{}", (longest-len(begin)-len(end))/3) + end
	s, err := readSample(strings.NewReader(text), nil, true)
	if err != nil || len(s.pods) != 1 || len(s.pods["1"]) != 1 {
		t.Errorf("got %d pods, %d containers, %v", len(s.pods), len(s.pods["1"]), err)
	}
}

// FuzzSummary wants that whatever a kubelet says is not negative, and in the order of the
// containers' names.
func FuzzSummary(f *testing.F) {
	f.Add(summary(ofPod("1", said("b", 100, 9e9, 25e7, 5<<20), said("a", 5, 9e9, 0, 5<<20))),
		summary(ofPod("1", said("b", 110, 9e9, 0, 5<<20), said("a", 15, 10e9, 0, 5<<20))), true)
	f.Add(summary(), `{"node": {}, "pods": [{"containers": [{}]}]}`, false)
	f.Fuzz(func(t *testing.T, first, second string, settled bool) {
		before, err := readSample(strings.NewReader(first), nil, settled)
		if err != nil {
			before = nil
		}
		s, err := readSample(strings.NewReader(second), before, settled)
		if err != nil {
			return
		}
		for _, pod := range s.pods {
			list, at, window := pod.list()
			if list == nil {
				continue
			}
			var names []string
			for _, container := range list {
				names = append(names, container.Name)
				for name, quantity := range container.Usage {
					if quantity.Sign() < 0 {
						t.Errorf("%s of %s is %v", name, container.Name, &quantity)
					}
				}
			}
			if !slices.IsSorted(names) || len(names) != len(pod) || at.IsZero() || window < 0 {
				t.Errorf("got %q of %d containers at %v over %v", names, len(pod), at, window)
			}
		}
	})
}
