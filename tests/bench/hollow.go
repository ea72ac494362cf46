package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hollowNamespace = "hollow"
	hollowLabel     = "bench/hollow"
	// A kubelet renews its Lease in the first interval and reports its status in the second if nothing
	// has changed.
	leaseInterval  = 10 * time.Second
	leaseSeconds   = 40
	reportInterval = 5 * time.Minute
)

// hollowNodes are nodes that nobody runs, with pods on them, as kwok makes them: they write what kubelets
// write. All of them use one connection, and none of them watches anything.
type hollowNodes struct {
	cluster *livedCluster
	count   int
	// renewal ends by stop. The goroutines that it ends are counted in running.
	renewal context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	// faults has the first failure of a renewal.
	faults chan error
}

// add returns a function that adds nodes with podsPerHollow pods each.
func (h *hollowNodes) add(count int) func(context.Context) error {
	return func(ctx context.Context) error {
		if h.stop == nil {
			h.faults = make(chan error, 1)
			h.renewal, h.stop = context.WithCancel(h.cluster.ctx)
			if err := h.cluster.makeNamespace(ctx, hollowNamespace); err != nil {
				return err
			}
		}
		first := h.count
		h.count += count
		_, err := load(livedWorkers, func(n int) bool { return first+n < h.count }, func(n int) error { return h.join(ctx, first+n) })
		if err != nil {
			return err
		}
		return until(ctx, "the nodes to be without taints", func(ctx context.Context) error {
			nodes, err := h.cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: hollowLabel})
			if err != nil {
				return err
			}
			for _, node := range nodes.Items {
				// One taint is the node's own.
				if len(node.Spec.Taints) > 1 || node.Spec.PodCIDR == "" {
					return fmt.Errorf("%s has the taints %v and the PodCIDR %q", node.Name, node.Spec.Taints, node.Spec.PodCIDR)
				}
			}
			select {
			case err := <-h.faults:
				return err
			default:
				return nil
			}
		})
	}
}

// join creates a node with its Lease and its pods, and starts what its kubelet would do.
func (h *hollowNodes) join(ctx context.Context, n int) error {
	node, err := h.cluster.client.CoreV1().Nodes().Create(ctx, hollowNode(n), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	seconds := int32(leaseSeconds)
	lease, err := h.cluster.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:            node.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	h.running.Go(func() { h.keep(lease) })
	pods := h.cluster.client.CoreV1().Pods(hollowNamespace)
	for i := range podsPerHollow {
		pod, err := pods.Create(ctx, hollowPod(node.Name, i), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		pod.Status = hollowPodStatus(pod, n, i)
		if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// keep renews a node's Lease and reports its status, until the nodes are removed.
func (h *hollowNodes) keep(lease *coordinationv1.Lease) {
	renew, report := time.NewTicker(leaseInterval), time.NewTicker(reportInterval)
	defer renew.Stop()
	defer report.Stop()
	for {
		var err error
		select {
		case <-h.renewal.Done():
			return
		case <-renew.C:
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			var renewed *coordinationv1.Lease
			if renewed, err = h.cluster.client.CoordinationV1().Leases(lease.Namespace).Update(h.renewal, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			}
		case <-report.C:
			status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
			_, err = h.cluster.client.CoreV1().Nodes().PatchStatus(h.renewal, lease.Name, []byte(status))
		}
		if err != nil && h.renewal.Err() == nil {
			select {
			case h.faults <- fmt.Errorf("renew %s: %w", lease.Name, err):
			default:
			}
		}
	}
}

// remove deletes pods and nodes, and waits until their Leases are gone too.
func (h *hollowNodes) remove(ctx context.Context) error {
	h.stop()
	h.running.Wait()
	select {
	case err := <-h.faults:
		return err
	default:
	}
	client := h.cluster.client
	if err := client.CoreV1().Pods(hollowNamespace).DeleteCollection(ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{}); err != nil {
		return err
	}
	if err := client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: hollowLabel}); err != nil {
		return err
	}
	if err := h.cluster.removeNamespaces(ctx, hollowNamespace); err != nil {
		return err
	}
	return until(ctx, "Leases to go", func(ctx context.Context) error {
		leases, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err == nil && len(leases.Items) > 1 {
			err = fmt.Errorf("%d are left", len(leases.Items))
		}
		return err
	})
}

// hollowNode returns a node that is Ready. Pods of others must tolerate its taint.
func hollowNode(n int) *corev1.Node {
	name := fmt.Sprint("hollow-", n)
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("200Gi"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			hollowLabel: "", corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: hollowLabel, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.%d.%d", n/250, 1+n%250)}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: fmt.Sprintf("%032x", n), SystemUUID: fmt.Sprintf("%032x", n), BootID: fmt.Sprintf("%032x", n),
				KernelVersion: "6.12.0", OSImage: "Debian GNU/Linux 12 (bookworm)", ContainerRuntimeVersion: "containerd://2.4.2",
				KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	for _, condition := range []struct {
		kind    corev1.NodeConditionType
		status  corev1.ConditionStatus
		reason  string
		message string
	}{
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"},
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: condition.kind, Status: condition.status, Reason: condition.reason, Message: condition.message,
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for i := range 10 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/team/app-%d@sha256:%064x", i, i), fmt.Sprintf("registry.example/team/app-%d:1.2.3", i)}, SizeBytes: 1 << 26})
	}
	return node
}

func hollowPod(node string, i int) *corev1.Pod {
	app := fmt.Sprint("app-", i)
	spec := appPod("registry.example/team/" + app + ":1.2.3")
	spec.NodeName = node
	spec.Tolerations = []corev1.Toleration{{Key: hollowLabel, Operator: corev1.TolerationOpExists}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(app, "-", node), Labels: appLabels(app)}, Spec: spec}
}

// hollowPodStatus returns the status that the kubelet of node n reports of a pod that runs.
func hollowPodStatus(pod *corev1.Pod, n, i int) corev1.PodStatus {
	now := metav1.Now()
	address := fmt.Sprintf("10.%d.%d.%d", 129+n/256, n%256, 2+i)
	started := true
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, StartTime: &now,
		HostIP: fmt.Sprintf("192.168.%d.%d", n/250, 1+n%250), QOSClass: corev1.PodQOSBurstable,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: pod.Spec.Containers[0].Image, Ready: true, Started: &started,
			ImageID:     fmt.Sprintf("registry.example/team/app-%d@sha256:%064x", i, i),
			ContainerID: fmt.Sprintf("containerd://%064x", n*podsPerHollow+i),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return status
}
