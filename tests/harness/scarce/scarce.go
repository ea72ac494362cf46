// Package scarce runs kedge with little memory or a slow disk, and reports what failed.
// tests/e2e/small, tests/e2e/slowdisk and tests/bench call it.
package scarce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

const (
	// MemoryLimit is a quarter of the memory of today's smallest Raspberry Pi, in bytes.
	MemoryLimit = 256 << 20
	// SmallPods is how many pods run within MemoryLimit.
	SmallPods = 5

	databaseDir = "/var/lib/kedge/server/db"
	kubeconfig  = "/etc/kedge/kedge.yaml"
	// requestTimeout limits one API call, like a client's timeout.
	requestTimeout = 30 * time.Second
	startTimeout   = 5 * time.Minute
	interval       = time.Second
)

// System is a running installation: kedge, or another distribution to compare with.
type System struct {
	Client kubernetes.Interface
	// Restarts returns how often parts of the system have ended.
	Restarts func() int
}

// ErrEnded means that a part of the system has ended.
var ErrEnded = errors.New("a process ended")

// StartKedge starts kedge on a host and waits until its API answers.
func StartKedge(ctx context.Context, t harness.T, h *harness.Host) (*System, error) {
	server := h.StartServer(t)
	ended := make(chan struct{})
	go func() {
		server.Exited()
		close(ended)
	}()
	system := &System{Restarts: func() int {
		select {
		case <-ended:
			return 1
		default:
			return 0
		}
	}}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var err error
	for {
		if system.Restarts() > 0 {
			return nil, ErrEnded
		}
		if system.Client, err = connect(ctx, h, kubeconfig); err == nil {
			return system, nil
		}
		if wait(ctx) != nil {
			return nil, fmt.Errorf("wait for the API: %w", err)
		}
	}
}

// connect returns a client of an API that answers.
func connect(ctx context.Context, h *harness.Host, path string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", h.Path(path))
	if err != nil {
		return nil, err
	}
	cfg.Dial = h.DialContext
	cfg.QPS = -1
	cfg.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	_, err = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return client, err
}

// Small runs kedge with SmallPods pods in MemoryLimit of memory for this duration. It returns the most
// memory in bytes that the kernel counted, and all faults.
func Small(ctx context.Context, t harness.T, network *harness.Network, duration time.Duration) (peak float64, err error) {
	h := network.NewHost(t, "small")
	memory := h.ContainMemory(MemoryLimit)
	system, err := StartKedge(ctx, t, h)
	if err == nil {
		err = system.Work(ctx, SmallPods, duration)
	}
	kills, countErr := memory.OOMKills()
	if kills > 0 {
		err = errors.Join(fmt.Errorf("the kernel killed %d of its processes for lack of memory", kills), err)
	}
	peak, peakErr := memory.Peak()
	return peak, errors.Join(err, countErr, peakErr)
}

// SlowDisk runs kedge with its database on an SD card for this duration. It returns the disk's
// statistics and all faults.
func SlowDisk(ctx context.Context, t harness.T, network *harness.Network, duration time.Duration) (slowfs.Stats, error) {
	h := network.NewHost(t, "slow")
	disk := slowfs.Mount(t, h, databaseDir, slowfs.SDCard)
	system, err := StartKedge(ctx, t, h)
	if err == nil {
		err = system.Work(ctx, SmallPods, duration)
	}
	return disk.Stats(), err
}

// Work starts pods and then calls the API for this duration. All pods must become Ready, calls must be
// answered, and nothing may end or be restarted.
func (s *System) Work(ctx context.Context, pods int, duration time.Duration) error {
	if err := s.runPods(ctx, pods); err != nil {
		return err
	}
	for end := time.Now().Add(duration); ; {
		if err := s.callAPI(ctx); err != nil {
			return err
		}
		if err := s.check(ctx, pods); err != nil {
			return err
		}
		if time.Now().After(end) {
			return nil
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

func (s *System) runPods(ctx context.Context, count int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	api := s.Client.CoreV1().Pods(metav1.NamespaceDefault)
	for i := range count {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("small-", i)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: assets.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent}}},
		}
		for {
			// Just after the start the pods' service account may not exist yet.
			_, err := api.Create(ctx, pod, metav1.CreateOptions{})
			if err == nil {
				break
			}
			if s.Restarts() > 0 {
				return ErrEnded
			}
			if wait(ctx) != nil {
				return fmt.Errorf("create pod: %w", err)
			}
		}
	}
	for {
		err := s.check(ctx, count)
		if err == nil || s.Restarts() > 0 {
			return err
		}
		if wait(ctx) != nil {
			return err
		}
	}
}

// callAPI writes, reads, lists and deletes an object.
func (s *System) callAPI(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	api := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	made, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "small-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create an object: %w", err)
	}
	made.Data = map[string]string{"time": time.Now().String()}
	if _, err := api.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change an object: %w", err)
	}
	if _, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	if err := api.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete an object: %w", err)
	}
	return nil
}

// check returns nil if the node and this number of pods are Ready and nothing has ended.
func (s *System) check(ctx context.Context, pods int) error {
	if s.Restarts() > 0 {
		return ErrEnded
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var faults []string
	for _, node := range nodes.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				faults = append(faults, fmt.Sprintf("node %s: %s", node.Name, c.Message))
			}
		}
	}
	list, err := s.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, pod := range list.Items {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
		for _, container := range pod.Status.ContainerStatuses {
			if container.RestartCount > 0 {
				faults = append(faults, fmt.Sprintf("pod %s was restarted", pod.Name))
			}
		}
	}
	if ready != pods {
		faults = append(faults, fmt.Sprintf("%d of %d pods are Ready", ready, pods))
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(interval):
		return nil
	}
}
