// Package kill9 kills kedge at random moments, also while it starts, and cuts the power of its disk. No
// acknowledged write may be lost, no pod restarted, and no resourceVersion used twice.
package kill9

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// killsVariable changes how often TestKill9 kills. With 200, for example, it takes half an hour.
const killsVariable = "KILL9"

const (
	defaultKills = 20
	// longest is the longest time between two kills. A start takes about half of it.
	longest   = 12 * time.Second
	namespace = "default"
	patience  = 2 * time.Minute
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestKill9(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	kills := defaultKills
	if text := os.Getenv(killsVariable); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s is %q, which is not a number", killsVariable, text)
		}
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := image.Testserver(repository)
	if err != nil {
		t.Fatal(err)
	}
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	host.Preload(archive)
	server := host.StartServer(t)
	server.WaitReady()
	client := server.Client()
	for i := range 3 {
		makePod(t, client, fmt.Sprint("pod-", i))
	}
	before := waitPods(t, client)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := &writer{client: client, expected: map[string][]string{}, random: rand.New(rand.NewPCG(seed, 1))}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() { w.run(ctx) })
	defer stop()
	for range kills {
		time.Sleep(time.Duration(random.Int64N(int64(longest))))
		server.Kill9()
		server.Start()
	}
	server.WaitReady()
	stop()
	writing.Wait()

	t.Logf("%d writes were acknowledged", w.acknowledged)
	if w.acknowledged < kills {
		t.Errorf("only %d writes were acknowledged: the test shows nothing", w.acknowledged)
	}
	w.verify(t)
	// A restart of a container would show after a moment.
	time.Sleep(10 * time.Second)
	if after := waitPods(t, client); !maps.Equal(after, before) {
		t.Errorf("containers are\n%v\nand were\n%v", after, before)
	}
}

func makePod(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image.TestserverName, Args: []string{"sleep"}}}},
	}
	harness.Eventually(t, patience, "pod to be made", func() error {
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// waitPods waits until all pods run, and returns the container of each and its start time.
func waitPods(t *testing.T, client kubernetes.Interface) map[string]string {
	t.Helper()
	containers := map[string]string{}
	harness.Eventually(t, patience, "pods to run", func() error {
		pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if len(pod.Status.ContainerStatuses) != 1 || pod.Status.ContainerStatuses[0].State.Running == nil {
				return fmt.Errorf("%s does not run: %+v", pod.Name, pod.Status)
			}
			status := pod.Status.ContainerStatuses[0]
			containers[pod.Name] = fmt.Sprintf("%s since %s, restarted %d times", status.ContainerID, status.State.Running.StartedAt, status.RestartCount)
		}
		return nil
	})
	return containers
}

// absent is the value of a ConfigMap that does not exist.
const absent = ""

// writer creates, changes and deletes ConfigMaps one after the other.
type writer struct {
	client kubernetes.Interface
	random *rand.Rand
	// expected has the values that each ConfigMap may have: the last acknowledged one, and
	// those sent later without an answer.
	expected     map[string][]string
	acknowledged int
}

func (w *writer) run(ctx context.Context) {
	for i := 1; ctx.Err() == nil; i++ {
		name := fmt.Sprint("key-", w.random.IntN(200))
		values := w.expected[name]
		if len(values) == 0 {
			values = []string{absent}
		}
		value := fmt.Sprint(i)
		if w.random.IntN(5) == 0 {
			value = absent
		}
		w.expected[name] = append(values, value)
		if err := w.write(ctx, name, value); err != nil {
			// The server was killed, or is starting.
			time.Sleep(20 * time.Millisecond)
			continue
		}
		w.acknowledged++
		w.expected[name] = []string{value}
	}
}

func (w *writer) write(ctx context.Context, name, value string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	api := w.client.CoreV1().ConfigMaps(namespace)
	if value == absent {
		if err := api.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	_, err := api.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

func (w *writer) verify(t *testing.T) {
	t.Helper()
	list, err := w.client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, object := range list.Items {
		found[object.Name] = object.Data["value"]
	}
	for name, values := range w.expected {
		if !slices.Contains(values, found[name]) {
			t.Errorf("%s is %q, and the writes acknowledged or sent say one of %q", name, found[name], values)
		}
	}
}
