package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	// singlePods is how many pods are started one after the other, for the time that one takes.
	singlePods = 12
	// endedContainers is how many containers are killed, for the time until their end is seen.
	endedContainers = 12
	// singleRest is the time between two of them. It is no multiple of the periods of the kubelet's loops.
	singleRest = 1370 * time.Millisecond
)

// startSingly returns the median of the seconds that a pod takes from its creation until it is Ready, while nothing else happens.
func startSingly(ctx context.Context, client kubernetes.Interface) (float64, error) {
	var all []float64
	for n := range singlePods {
		seconds, err := runPods(ctx, client, n, 1)
		if err != nil {
			return 0, err
		}
		all = append(all, seconds)
		time.Sleep(singleRest)
	}
	return median(all), removePods(ctx, client)
}

// seeEnds returns the median of the seconds from the end of a container until its pod's status tells of it.
func seeEnds(ctx context.Context, host *harness.Host, client kubernetes.Interface) (float64, error) {
	var all []float64
	for n := range endedContainers {
		if _, err := runPods(ctx, client, n, 1); err != nil {
			return 0, err
		}
		time.Sleep(singleRest)
		seconds, err := seeEnd(ctx, host, client, fmt.Sprint(podLabel, "-", n))
		if err != nil {
			return 0, err
		}
		all = append(all, seconds)
	}
	return median(all), removePods(ctx, client)
}

// seeEnd kills the newest container, and waits until the status of its pod tells of it.
func seeEnd(ctx context.Context, host *harness.Host, client kubernetes.Interface, pod string) (float64, error) {
	events, err := client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		return 0, fmt.Errorf("watch pod: %w", err)
	}
	began := time.Now()
	// The sandbox of a pod runs the same program, and is older.
	if output, err := host.Command(ctx, "pkill", "-KILL", "--newest", "--exact", "pause").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("kill a container: %w: %s", err, output)
	}
	err = await(events, func(event watch.Event) bool {
		pod, ok := event.Object.(*corev1.Pod)
		return ok && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil ||
			ok && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Running == nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for the end of a container: %w", err)
	}
	return time.Since(began).Seconds(), nil
}

// step is something that happened while a pod was started.
type step struct {
	at   time.Time
	what string
}

// trace notes what happens until a pod is Ready: changes of the pod, and each program that a process of the machine begins to run.
type trace struct {
	mu    sync.Mutex
	steps []step
}

func (t *trace) note(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, step{time.Now(), what})
}

// tracePod starts a pod, and writes what happened, with the time since its creation.
func tracePod(ctx context.Context, client kubernetes.Interface, number int, w io.Writer) error {
	t, done := &trace{}, make(chan struct{})
	programs, faults := make(chan netlink.ProcEvent, 1000), make(chan error, 1)
	if err := netlink.ProcEventMonitor(programs, done, faults); err != nil {
		return fmt.Errorf("watch processes: %w", err)
	}
	var noting sync.WaitGroup
	noting.Go(func() { t.programs(programs) })
	following, stop := context.WithCancel(ctx)
	defer stop()
	events, err := client.CoreV1().Pods(metav1.NamespaceDefault).Watch(following, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	noting.Go(func() { t.pods(events, fmt.Sprint(podLabel, "-", number)) })
	began := time.Now()
	_, err = runPods(ctx, client, number, 1)
	close(done)
	stop()
	noting.Wait()
	if err != nil {
		return err
	}
	for _, s := range t.steps {
		if since := s.at.Sub(began); since >= 0 {
			fmt.Fprintf(w, "%6.0f ms  %s\n", float64(since.Microseconds())/1000, s.what)
		}
	}
	return nil
}

// programs notes each program that begins, until the channel is closed.
func (t *trace) programs(events <-chan netlink.ProcEvent) {
	for event := range events {
		began, ok := event.Msg.(*netlink.ExecProcEvent)
		if !ok {
			continue
		}
		words, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(began.ProcessPid)), "cmdline"))
		if errors.Is(err, os.ErrNotExist) {
			words = []byte("a program that has ended")
		}
		all := strings.Fields(strings.ReplaceAll(string(words), "\x00", " "))
		for n := range all {
			all[n] = filepath.Base(all[n])
		}
		t.note("runs " + strings.Join(all[:min(len(all), 8)], " "))
	}
}

// pods notes each change of a pod.
func (t *trace) pods(events watch.Interface, name string) {
	for event := range events.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || pod.Name != name {
			continue
		}
		words := []string{"pod " + strings.ToLower(string(event.Type))}
		if pod.Spec.NodeName != "" {
			words = append(words, "has a node")
		}
		for _, c := range pod.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				words = append(words, string(c.Type))
			}
		}
		t.note(strings.Join(words, ", "))
	}
}
