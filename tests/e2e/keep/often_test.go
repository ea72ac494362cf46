package keep

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// losses is how often the box is lost, by what the server's configuration has besides.
var losses = map[string]int{"sqlite": 20, "etcd": 5}

// mayLose returns how long before its death a server may have acknowledged what is lost: backup-interval, and what writing to the bucket may take on a busy
// machine.
func mayLose() time.Duration { return time.Second + harness.Slowly(10*time.Second) }

// writer writes ConfigMaps without a pause: step i makes one, and deletes the one of step i-5.
type writer struct {
	t *testing.T
	// acknowledged are the times at which the steps were answered.
	acknowledged []time.Time
	// begun is how many steps were sent.
	begun int
	// pause is how long it waits after a step.
	pause time.Duration
}

const behind = 5

func name(step int) string { return "step-" + strconv.Itoa(step) }

// after returns the names that there are after so many steps. One step is two writes: half of it has only the first.
func after(steps int, half bool) []string {
	var names []string
	for i := max(0, steps-behind); i < steps; i++ {
		names = append(names, name(i))
	}
	if half {
		names = append(names, name(steps))
	}
	slices.Sort(names)
	return names
}

// write writes until the server does not answer any more.
func (w *writer) write(client kubernetes.Interface) {
	maps := client.CoreV1().ConfigMaps(cluster.Namespace)
	for ctx := context.Background(); ; {
		step := w.begun
		w.begun++
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(step), Labels: map[string]string{"step": ""}}}, metav1.CreateOptions{}); err != nil {
			return
		}
		if step >= behind {
			if err := maps.Delete(ctx, name(step-behind), metav1.DeleteOptions{}); err != nil {
				return
			}
		}
		w.acknowledged = append(w.acknowledged, time.Now())
		time.Sleep(w.pause)
	}
}

// found compares what is there with the steps, and takes the writer back to the last step that is. Nothing that was acknowledged
// before the time may be missing.
func (w *writer) found(client kubernetes.Interface, before time.Time) {
	w.t.Helper()
	list, err := client.CoreV1().ConfigMaps(cluster.Namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: "step"})
	if err != nil {
		w.t.Fatal(err)
	}
	there := map[string]bool{}
	for _, item := range list.Items {
		there[item.Name] = true
	}
	names := slices.Sorted(maps.Keys(there))
	for steps := w.begun; steps >= 0; steps-- {
		half := slices.Equal(names, after(steps, true))
		if !half && !slices.Equal(names, after(steps, false)) {
			continue
		}
		for i := steps; i < len(w.acknowledged); i++ {
			if w.acknowledged[i].Before(before) {
				w.t.Fatalf("step %d was acknowledged %s before that, and is lost: only %d steps of %d are there. Since then, the longest time without an answer was %s",
					i, before.Sub(w.acknowledged[i]), steps, len(w.acknowledged), longestPause(w.acknowledged[i:]))
			}
		}
		w.t.Logf("of %d acknowledged steps, %d are there", len(w.acknowledged), steps)
		w.acknowledged = w.acknowledged[:min(steps, len(w.acknowledged))]
		if half { // complete it
			if steps >= behind {
				if err := client.CoreV1().ConfigMaps(cluster.Namespace).Delete(w.t.Context(), name(steps-behind), metav1.DeleteOptions{}); err != nil {
					w.t.Fatal(err)
				}
			}
			steps++
		}
		w.begun = steps
		for len(w.acknowledged) < steps { // it was answered too late
			w.acknowledged = append(w.acknowledged, time.Now())
		}
		return
	}
	w.t.Fatalf("the server has %v, which it never had at once", names)
}

// longestPause returns the longest time between two steps.
func longestPause(steps []time.Time) (longest time.Duration) {
	for i := 1; i < len(steps); i++ {
		longest = max(longest, steps[i].Sub(steps[i-1]))
	}
	return longest
}

// TestLoseItOften loses the box again and again, at any moment, while a client writes. Each time the newest state is back, exactly as it was at one
// moment, and no older revision is ever given to clients.
func TestLoseItOften(t *testing.T) {
	harness.Require(t)
	for name, more := range map[string]string{"sqlite": "", "etcd": "cluster-init: true\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loseOften(t, settings+more, losses[name])
		})
	}
}

func loseOften(t *testing.T, settings string, losses int) {
	network := harness.NewNetwork(t)
	b := newBucket(t)
	host := network.NewHost(t, "server-1")
	b.serve(host)
	host.WriteFile("/etc/kedge/config.yaml", settings+"disable-agent: true\n")
	began := time.Now()
	server := host.StartServer(t)
	server.WaitAPI()
	key := makeKey(t, host)
	host.WriteFile("/opt/key", key)
	restore := append(slices.Clone(restore), "--key", "/opt/key")
	harness.Eventually(t, cluster.Patience, "the first state to be in the backup", func() error {
		_, err := check(t, host, restore)
		return err
	})
	w := &writer{t: t}
	var newest int64
	for range losses {
		client := server.Client()
		done := make(chan struct{})
		go func() {
			w.write(client)
			close(done)
		}()
		time.Sleep(time.Duration(rand.Int64N(int64(6 * time.Second))))
		list, err := client.CoreV1().ConfigMaps(cluster.Namespace).List(t.Context(), metav1.ListOptions{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		newest = max(newest, revision(t, list.ResourceVersion))
		// A server that has just started answers clients before all its parts are ready.
		safe := time.Now().Add(-mayLose())
		if ready := readySince(t, server.Log(), "backup"); ready.IsZero() || ready.After(safe) {
			safe = began
		}
		host.LoseDisk()
		server.Exited()
		<-done

		b.serve(host)
		host.WriteFile("/opt/key", key)
		run(t, host, restore...)
		began = time.Now()
		server = host.StartServer(t)
		server.WaitAPI()
		client = server.Client()
		if list, err = client.CoreV1().ConfigMaps(cluster.Namespace).List(t.Context(), metav1.ListOptions{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		if now := revision(t, list.ResourceVersion); now <= newest {
			t.Fatalf("the restored server is at revision %d, and clients have seen %d", now, newest)
		}
		w.found(client, safe)
	}
}

// readySince returns when a component was ready in the last life of a server, by its log: zero if it was not.
func readySince(t *testing.T, log, component string) time.Time {
	t.Helper()
	log = log[max(0, strings.LastIndex(log, " starts, data in ")):]
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `msg="ready in `) || !strings.HasSuffix(strings.TrimSpace(line), " component="+component) {
			continue
		}
		_, text, _ := strings.Cut(line, `time="`)
		text, _, _ = strings.Cut(text, `"`)
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	return time.Time{}
}

func revision(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(fmt.Errorf("resourceVersion: %w", err))
	}
	return n
}
