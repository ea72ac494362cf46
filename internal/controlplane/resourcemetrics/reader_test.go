package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubelets are fake kubelets: the transport that asks them.
type kubelets struct {
	takes time.Duration

	mu      sync.Mutex
	says    map[string]string // by the name of the node; the others refuse
	asked   []string
	busy    int
	busiest int
}

func (k *kubelets) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	k.asked = append(k.asked, r.URL.String())
	k.busy++
	k.busiest = max(k.busiest, k.busy)
	text, ok := k.says[r.URL.Hostname()]
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.busy--
	}()
	select {
	case <-time.After(k.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	switch {
	case !ok:
		return nil, errors.New("connection refused")
	case text == "":
		return &http.Response{StatusCode: http.StatusForbidden, Status: "403 Forbidden", Body: io.NopCloser(strings.NewReader("no"))}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text))}, nil
}

// count returns how often kubelets were asked since the last call.
func (k *kubelets) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.asked)
	k.asked = nil
	return n
}

func newNode(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": name}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func (k *kubelets) reader(ctx context.Context) *reader {
	return newReader(ctx, Config{Kubelet: func(node *corev1.Node) (string, error) { return node.Name + ":10250", nil }, Transport: k})
}

func TestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := logrustest.NewLocal(logrus.StandardLogger())
		defer said.Reset()
		k := &kubelets{takes: time.Second, says: map[string]string{"a": summary(), "b": summary(), "gone": summary(), "odd": "{", "forbids": ""}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := k.reader(ctx)
		warnings := func() (all []string) {
			for _, entry := range said.AllEntries() {
				if entry.Level == logrus.WarnLevel {
					all = append(all, entry.Message)
				}
			}
			slices.Sort(all)
			return all
		}
		nodes := []*corev1.Node{newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionFalse), newNode("gone", corev1.ConditionUnknown),
			newNode("odd", corev1.ConditionTrue), newNode("dead", corev1.ConditionTrue), newNode("starting", corev1.ConditionFalse), newNode("forbids", corev1.ConditionTrue)}
		read := func(asked int) {
			t.Helper()
			var callers sync.WaitGroup
			for range 3 {
				callers.Go(func() {
					samples, err := r.read(ctx, nodes)
					if err != nil || len(samples) != 2 || samples["a"] == nil || samples["b"] == nil {
						t.Errorf("got %v, %v", samples, err)
					}
				})
			}
			callers.Wait()
			if n := k.count(); n != asked {
				t.Errorf("asked %d times, want %d", n, asked)
			}
		}
		began := time.Now()
		read(6)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		read(0)
		time.Sleep(fresh)
		read(6)
		if faults := warnings(); len(faults) > 0 {
			t.Errorf("just after the start it says %q", faults)
		}
		time.Sleep(settling)
		read(6)
		time.Sleep(fresh)
		read(6)

		// Each fault is said once, and those of nodes that are not ready only to who debugs.
		faults := warnings()
		for i, want := range []string{"dead and its pods: ask kubelet: connection refused",
			"forbids and its pods: ask kubelet: it answers 403 Forbidden: \"no\"", "odd and its pods: decode"} {
			if len(faults) != 3 || !strings.Contains(faults[i], want) {
				t.Errorf("said %q, want %q", faults, want)
			}
		}

		// After a while nothing is left.
		time.Sleep(2*kept + time.Second)
		r.mu.Lock()
		if len(r.answers) > 0 || r.forgetting != nil {
			t.Errorf("it still has %v, %v", r.answers, r.forgetting)
		}
		r.mu.Unlock()
	})
}

// TestReaderEnds wants the wait of callers to end, and the requests to kubelets with the
// server, so that no goroutine is left: synctest would fail.
func TestReaderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelets{takes: time.Hour, says: map[string]string{"a": summary()}}
		ctx, cancel := context.WithCancel(t.Context())
		r := k.reader(ctx)
		nodes := []*corev1.Node{newNode("a", corev1.ConditionTrue)}
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := r.read(impatient, nodes); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		began := time.Now()
		if samples, err := r.read(t.Context(), nodes); err != nil || len(samples) != 0 {
			t.Errorf("got %v, %v", samples, err)
		}
		if took := time.Since(began); took != patience-time.Second {
			t.Errorf("the kubelet had %v more", took)
		}
		time.Sleep(fresh)
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		began = time.Now()
		if samples, err := r.read(t.Context(), nodes); err != nil || len(samples) != 0 || time.Since(began) != time.Second {
			t.Errorf("got %v, %v after %v", samples, err, time.Since(began))
		}
		time.Sleep(2 * kept)
	})
}

// TestReaderOfMany asks few kubelets at the same time.
func TestReaderOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelets{takes: time.Second, says: map[string]string{}}
		var nodes []*corev1.Node
		for i := range 100 {
			name := fmt.Sprint("node-", i)
			k.says[name] = summary()
			nodes = append(nodes, newNode(name, corev1.ConditionTrue))
		}
		r := k.reader(t.Context())
		samples, err := r.read(t.Context(), nodes)
		if err != nil || len(samples) != len(nodes) || k.busiest != atOnce {
			t.Errorf("got %d, %v; %d at once", len(samples), err, k.busiest)
		}
		time.Sleep(2*kept + time.Second)
	})
}
