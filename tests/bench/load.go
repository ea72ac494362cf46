package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kedge-dev/kedge/internal/base/assets"
)

const (
	podLabel = "bench"
	// loadTime is how long loadWorkers send requests.
	loadTime    = 10 * time.Second
	loadWorkers = 8
	// writes is the number of writes for the watch's latency, made writeInterval apart.
	writes        = 500
	writeInterval = 20 * time.Millisecond
	podsTimeout   = 3 * time.Minute
)

// runPods creates count pods at once, numbered from first, and returns the seconds until all are Ready.
func runPods(ctx context.Context, client kubernetes.Interface, first, count int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	api := client.CoreV1().Pods(metav1.NamespaceDefault)
	events, err := followPods(ctx, client)
	if err != nil {
		return 0, err
	}
	started := time.Now()
	for i := range count {
		go func() {
			_, err := api.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(podLabel, "-", first+i), Labels: map[string]string{podLabel: ""}},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: podLabel, Image: assets.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				fail(fmt.Errorf("create pod: %w", err))
			}
		}()
	}
	ready := map[string]bool{}
	err = await(events, func(event watch.Event) bool {
		if podReady(event) {
			// Earlier pods may still change.
			if number, err := strconv.Atoi(event.Object.(*corev1.Pod).Name[len(podLabel)+1:]); err == nil && number >= first {
				ready[strconv.Itoa(number)] = true
			}
		}
		return len(ready) == count
	})
	if err != nil {
		return 0, fmt.Errorf("wait for pods: %d of %d are Ready: %w", len(ready), count, cmp.Or(context.Cause(ctx), err))
	}
	return time.Since(started).Seconds(), nil
}

// followPods returns the changes of the pods of runPods from now on. The API ends a watch that does not keep up in a burst,
// so it is begun again there, as every client does that follows something.
func followPods(ctx context.Context, client kubernetes.Interface) (watch.Interface, error) {
	api, chosen := client.CoreV1().Pods(metav1.NamespaceDefault), metav1.ListOptions{LabelSelector: podLabel}
	now, err := api.List(ctx, chosen)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = chosen.LabelSelector
			return api.Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return events, nil
}

// removePods deletes the pods of runPods, and waits until they are gone.
func removePods(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	api := client.CoreV1().Pods(metav1.NamespaceDefault)
	chosen := metav1.ListOptions{LabelSelector: podLabel}
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, chosen); err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	for {
		pods, err := api.List(ctx, chosen)
		if err == nil && len(pods.Items) == 0 {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for pods to go: %w", err)
		}
	}
}

// requestRate returns how many requests per second the API answers. Each worker creates, reads,
// changes, lists and deletes objects of 1 KiB.
func requestRate(ctx context.Context, client kubernetes.Interface) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime+clientTimeout)
	defer cancel()
	api := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	rate, err := load(loadWorkers, during(loadTime), func(int) error {
		object := kibibyte(metav1.ObjectMeta{GenerateName: "load-"})
		made, err := api.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		for range 4 {
			if _, err := api.Get(ctx, made.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		made.Labels = map[string]string{"changed": ""}
		if _, err := api.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
		if _, err := api.List(ctx, metav1.ListOptions{}); err != nil {
			return err
		}
		return api.Delete(ctx, made.Name, metav1.DeleteOptions{})
	})
	return 8 * rate, err // requests each
}

// kibibyte returns an object of 1 KiB.
func kibibyte(meta metav1.ObjectMeta) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"value": string(make([]byte, 1024))}}
}

// load makes count workers call one with 0, 1 and so on, while more returns true for that number.
// It returns the calls per second.
func load(count int, more func(n int) bool, one func(n int) error) (rate float64, err error) {
	var workers sync.WaitGroup
	var next, done atomic.Int64
	faults := make(chan error, count)
	began := time.Now()
	for range count {
		workers.Go(func() {
			for n := int(next.Add(1)) - 1; more(n); n = int(next.Add(1)) - 1 {
				if err := one(n); err != nil {
					faults <- err
					return
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	rate = float64(done.Load()) / time.Since(began).Seconds()
	close(faults)
	if err := <-faults; err != nil {
		return 0, fmt.Errorf("send requests: %w", err)
	}
	return rate, nil
}

// during returns a function for load's more that returns true for this time from now.
func during(length time.Duration) func(int) bool {
	end := time.Now().Add(length)
	return func(int) bool { return time.Now().Before(end) }
}

// watchLatency returns the 99th percentile of the seconds from sending a write until a watcher has
// its event.
func watchLatency(ctx context.Context, client kubernetes.Interface) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, writes*writeInterval+podsTimeout)
	defer cancel()
	api := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	object, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "watched-"}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create an object to watch: %w", err)
	}
	events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: object.ResourceVersion, FieldSelector: "metadata.name=" + object.Name})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	var mutex sync.Mutex
	sent := map[string]time.Time{}
	written := make(chan error, 1)
	go func() {
		defer close(written)
		ticker := time.NewTicker(writeInterval)
		defer ticker.Stop()
		for i := range writes {
			<-ticker.C
			number := strconv.Itoa(i)
			object.Data = map[string]string{"number": number}
			mutex.Lock()
			sent[number] = time.Now()
			mutex.Unlock()
			changed, err := api.Update(ctx, object, metav1.UpdateOptions{})
			if err != nil {
				written <- err
				cancel()
				return
			}
			object = changed
		}
	}()
	var latencies []float64
	err = await(events, func(event watch.Event) bool {
		if seen, ok := event.Object.(*corev1.ConfigMap); ok {
			now := time.Now()
			mutex.Lock()
			if at, ok := sent[seen.Data["number"]]; ok {
				latencies = append(latencies, now.Sub(at).Seconds())
			}
			mutex.Unlock()
		}
		return len(latencies) == writes
	})
	if fault := <-written; fault != nil {
		err = fmt.Errorf("write: %w", fault)
	}
	if err != nil {
		return 0, fmt.Errorf("measure the watch's latency: %w", err)
	}
	return percentile(latencies, 0.99), nil
}

// percentile returns the smallest of values that is at least as large as this share of them.
func percentile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}
