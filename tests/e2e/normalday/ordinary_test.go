package normalday

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	// busy is how many processes keep the machine busy.
	busy = 10
	// longest is when these processes end by themselves, and how long the work of a part of the test may take.
	longest = 15 * time.Minute
)

// TestOrdinaryUse does in some minutes what users do in many days: rollouts, claims, quick deletions, clients
// that give up. It does that on a quiet machine, on a busy one, and while kedge is restarted. None of it is a
// fault of kedge, so no line may have the level error.
func TestOrdinaryUse(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	defer func() { wantNoErrors(t, map[string]string{"the server": c.Server.Log(), "the agent": agent.Log()}) }()
	d := &day{Cluster: c, nodes: []string{c.Server.Host.Name, agent.Host.Name}}

	t.Log("a quiet machine")
	if err := d.work(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("a busy machine")
	keepBusy(t)
	if err := d.work(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("restarts")
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() {
		if err := d.work(ctx); err != nil {
			t.Logf("work while kedge is restarted, which may fail: %v", err)
		}
	})
	for range 2 {
		agent.Restart()
		agent.WaitReady()
		c.Server.Restart()
		c.Server.WaitReady()
		c.WaitNode(agent.Host.Name, corev1.ConditionTrue)
	}
	cancel()
	working.Wait()
	t.Log("the end")
	if err := d.deleteAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(quiet)
	agent.Terminate()
	c.Server.Terminate()
}

// keepBusy gives the machine a load of ten until the test ends.
func keepBusy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for range busy {
		loop := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = loop.Wait() })
	}
}

// day is a cluster with users who do many things at once.
type day struct {
	*cluster.Cluster
	nodes []string
}

// work does everything at once, and waits until it is done. It stops when ctx ends.
func (d *day) work(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	works := map[string]func(context.Context) error{
		"a StatefulSet": d.statefulSet, "claims": d.claims, "ephemeral volumes": d.ephemeral, "attach": d.attach,
		"quick deletions": d.quickDeletions, "disruptions": d.disruptions, "a missing ServiceAccount": d.serviceAccount,
		"impatience": d.impatience, "nodes": d.changeNodes, "a quota": d.quota,
	}
	var mu sync.Mutex
	var faults []error
	var working sync.WaitGroup
	for name, do := range works {
		working.Go(func() {
			if err := do(ctx); err != nil {
				mu.Lock()
				faults = append(faults, fmt.Errorf("%s: %w", name, err))
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return errors.Join(faults...)
}

// apply creates or changes the objects of a YAML text.
func (d *day) apply(ctx context.Context, text string) error {
	return d.applyIn(ctx, cluster.Namespace, text)
}

// applyIn is apply for objects in a namespace.
func (d *day) applyIn(ctx context.Context, namespace, text string) error {
	return d.until(ctx, "objects to be applied", func() error {
		// The last of several flags counts.
		_, err := d.TryKubectl(strings.ReplaceAll(text, "IMAGE", image.TestserverName), "apply", "--namespace="+namespace, "-f", "-")
		return err
	})
}

// until waits until check returns nil, or ctx ends.
func (d *day) until(ctx context.Context, what string, check func() error) error {
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// change changes an object by a patch.
func change(n int) []byte {
	return fmt.Appendf(nil, `{"metadata": {"annotations": {"changed": "%d"}}}`, n)
}

// rollout changes the pods of a workload.
func rollout(n int) []byte {
	return fmt.Appendf(nil, `{"spec": {"template": {"metadata": {"annotations": {"changed": "%d"}}}}}`, n)
}

func (d *day) statefulSet(ctx context.Context) error {
	sets := d.Client.AppsV1().StatefulSets(cluster.Namespace)
	err := d.apply(ctx, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec:
  replicas: 2
  serviceName: set
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: set}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}
  template:
    metadata: {labels: {app: set}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: IMAGE, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
`)
	for n := range 3 {
		if err != nil {
			return err
		}
		if _, err = sets.Patch(ctx, "set", types.StrategicMergePatchType, rollout(n), metav1.PatchOptions{}); err != nil {
			return err
		}
		if _, err = sets.Patch(ctx, "set", types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, 1+n%3), metav1.PatchOptions{}); err != nil {
			return err
		}
		err = d.until(ctx, "the rollout of a StatefulSet", func() error {
			set, err := sets.Get(ctx, "set", metav1.GetOptions{})
			if err == nil && (set.Status.ObservedGeneration < set.Generation || set.Status.UpdatedReplicas != *set.Spec.Replicas || set.Status.ReadyReplicas != *set.Spec.Replicas) {
				err = fmt.Errorf("its status is %+v", set.Status)
			}
			return err
		})
	}
	return errors.Join(err, sets.Delete(ctx, "set", metav1.DeleteOptions{}))
}

// claims makes claims with pods, and changes claims and volumes while controllers change them too.
func (d *day) claims(ctx context.Context) error {
	const count = 4
	claims, volumes, pods := d.Client.CoreV1().PersistentVolumeClaims(cluster.Namespace), d.Client.CoreV1().PersistentVolumes(), d.Client.CoreV1().Pods(cluster.Namespace)
	var text strings.Builder
	for n := range count {
		fmt.Fprintf(&text, `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-%[1]d}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: claims-%[1]d}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: claim-%[1]d}}]
`, n)
	}
	if err := d.apply(ctx, text.String()); err != nil {
		return err
	}
	changing, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for n := 0; changing.Err() == nil; n++ {
			found, err := claims.List(changing, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, claim := range found.Items {
				_, _ = claims.Patch(changing, claim.Name, types.MergePatchType, change(n), metav1.PatchOptions{})
				if claim.Spec.VolumeName != "" {
					_, _ = volumes.Patch(changing, claim.Spec.VolumeName, types.MergePatchType, change(n), metav1.PatchOptions{})
				}
			}
		}
	})
	defer done.Wait()
	defer stop()
	for n := range count {
		if err := d.ready(ctx, fmt.Sprintf("claims-%d", n)); err != nil {
			return err
		}
	}
	// Both orders are ordinary: the claim before its pod, and the pod before its claim.
	var faults []error
	for n := range count {
		pod, claim := fmt.Sprintf("claims-%d", n), fmt.Sprintf("claim-%d", n)
		if n%2 == 0 {
			faults = append(faults, claims.Delete(ctx, claim, metav1.DeleteOptions{}))
		}
		faults = append(faults, pods.Delete(ctx, pod, metav1.DeleteOptions{}))
		if n%2 == 1 {
			faults = append(faults, claims.Delete(ctx, claim, metav1.DeleteOptions{}))
		}
	}
	return errors.Join(append(faults, d.until(ctx, "volumes to go", func() error {
		found, err := claims.List(ctx, metav1.ListOptions{})
		for _, claim := range found.Items {
			if strings.HasPrefix(claim.Name, "claim-") {
				err = errors.Join(err, fmt.Errorf("%s is there", claim.Name))
			}
		}
		return err
	}))...)
}

// ephemeral makes pods with volumes of their own, deletes them, and at once makes others with the same names.
func (d *day) ephemeral(ctx context.Context) error {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: ephemeral}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: IMAGE, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes:
  - name: data
    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}}}
`
	for range 3 {
		if err := d.apply(ctx, pod); err != nil {
			return err
		}
		if err := d.ready(ctx, "ephemeral"); err != nil {
			return err
		}
		if err := d.Client.CoreV1().Pods(cluster.Namespace).Delete(ctx, "ephemeral", *metav1.NewDeleteOptions(0)); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until a pod is ready.
func (d *day) ready(ctx context.Context, name string) error {
	return d.until(ctx, "pod "+name, func() error {
		pod, err := d.Client.CoreV1().Pods(cluster.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				return nil
			}
		}
		return fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
	})
}

// attach attaches to commands that end, and to one that has ended.
func (d *day) attach(ctx context.Context) error {
	for n := range 3 {
		// kubectl run may come too late to attach, and says so.
		output, err := d.TryKubectl("hello\n", "run", fmt.Sprintf("once-%d", n), "--stdin", "--rm", "--restart=Never", "--image="+image.TestserverName, "--", "exit", fmt.Sprint(n))
		d.Logf("kubectl run: %v %s", err, output)
	}
	err := d.apply(ctx, `
apiVersion: v1
kind: Pod
metadata: {name: half-done}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, args: [sleep], stdin: true}
  - {name: done, image: IMAGE, args: [exit, "0"], stdin: true}
`)
	if err != nil {
		return err
	}
	err = d.until(ctx, "a container to end", func() error {
		pod, err := d.Client.CoreV1().Pods(cluster.Namespace).Get(ctx, "half-done", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ended, running := false, false
		for _, s := range pod.Status.ContainerStatuses {
			ended, running = ended || s.State.Terminated != nil, running || s.State.Running != nil
		}
		if !ended || !running {
			return fmt.Errorf("its containers are %+v", pod.Status.ContainerStatuses)
		}
		return nil
	})
	if err != nil {
		return err
	}
	output, err := d.TryKubectl("hello\n", "attach", "half-done", "--container=done", "--stdin")
	d.Logf("kubectl attach: %v %s", err, output)
	// The pod goes while somebody is attached to it.
	attached, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	kubectl := d.Server.Host.Kedge(attached, "kubectl", "--namespace="+cluster.Namespace, "attach", "half-done", "--container=main", "--stdin")
	if err := kubectl.Start(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	err = d.Client.CoreV1().Pods(cluster.Namespace).Delete(ctx, "half-done", *metav1.NewDeleteOptions(0))
	_ = kubectl.Wait()
	return err
}

// quickDeletions deletes pods while they start.
func (d *day) quickDeletions(ctx context.Context) error {
	pods := d.Client.CoreV1().Pods(cluster.Namespace)
	var faults []error
	for round := range 3 {
		for n := range 6 {
			name := fmt.Sprintf("quick-%d-%d", round, n)
			_, err := pods.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PodSpec{
					NodeName:   d.nodes[n%2],
					Containers: []corev1.Container{{Name: "main", Image: image.TestserverName, Args: []string{"sleep"}, ImagePullPolicy: corev1.PullIfNotPresent}},
				},
			}, metav1.CreateOptions{})
			faults = append(faults, err)
		}
		for n := range 6 {
			time.Sleep(time.Duration(n*n) * 50 * time.Millisecond)
			faults = append(faults, pods.Delete(ctx, fmt.Sprintf("quick-%d-%d", round, n), *metav1.NewDeleteOptions(0)))
		}
	}
	return errors.Join(faults...)
}

// disruptions evicts pods of a budget while the budget and the pods change.
func (d *day) disruptions(ctx context.Context) error {
	err := d.apply(ctx, `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: budget}
spec: {minAvailable: 1, selector: {matchLabels: {app: budget}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: budget}
spec:
  replicas: 3
  selector: {matchLabels: {app: budget}}
  template:
    metadata: {labels: {app: budget}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: IMAGE, args: [sleep]}]
`)
	if err != nil {
		return err
	}
	budgets, deployments, pods := d.Client.PolicyV1().PodDisruptionBudgets(cluster.Namespace), d.Client.AppsV1().Deployments(cluster.Namespace), d.Client.CoreV1().Pods(cluster.Namespace)
	for n := range 60 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Conflicts and refusals are for those who asked.
		_, _ = budgets.Patch(ctx, "budget", types.MergePatchType, change(n), metav1.PatchOptions{})
		if n%20 == 0 {
			_, _ = deployments.Patch(ctx, "budget", types.StrategicMergePatchType, rollout(n), metav1.PatchOptions{})
		}
		if n%10 != 0 {
			continue
		}
		found, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=budget"})
		if err != nil {
			return err
		}
		for _, pod := range found.Items {
			eviction, err := d.TryKubectl(fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q}}`, pod.Name),
				"create", "--raw=/api/v1/namespaces/"+cluster.Namespace+"/pods/"+pod.Name+"/eviction", "-f", "-")
			d.Logf("eviction: %v %s", err, eviction)
			break
		}
	}
	return errors.Join(deployments.Delete(ctx, "budget", metav1.DeleteOptions{}), budgets.Delete(ctx, "budget", metav1.DeleteOptions{}))
}

// serviceAccount makes a Deployment before its ServiceAccount.
func (d *day) serviceAccount(ctx context.Context) error {
	err := d.apply(ctx, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: early}
spec:
  selector: {matchLabels: {app: early}}
  template:
    metadata: {labels: {app: early}}
    spec:
      serviceAccountName: late
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: IMAGE, args: [sleep]}]
`)
	if err != nil {
		return err
	}
	err = d.until(ctx, "an Event about the missing ServiceAccount", func() error {
		events, err := d.Client.CoreV1().Events(cluster.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if strings.Contains(event.Message, `serviceaccount "late" not found`) {
				return nil
			}
		}
		return fmt.Errorf("there are %d other Events", len(events.Items))
	})
	if err != nil {
		return err
	}
	accounts, deployments := d.Client.CoreV1().ServiceAccounts(cluster.Namespace), d.Client.AppsV1().Deployments(cluster.Namespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	err = d.until(ctx, "the early Deployment", func() error {
		deployment, err := deployments.Get(ctx, "early", metav1.GetOptions{})
		if err == nil && deployment.Status.ReadyReplicas == 0 {
			err = fmt.Errorf("its status is %+v", deployment.Status)
		}
		return err
	})
	return errors.Join(err, deployments.Delete(ctx, "early", metav1.DeleteOptions{}), accounts.Delete(ctx, "late", metav1.DeleteOptions{}))
}

// impatience has clients that give up before they have their answers, at different moments.
func (d *day) impatience(ctx context.Context) error {
	const target = "impatient"
	maps := d.Client.CoreV1().ConfigMaps(cluster.Namespace)
	large := map[string]string{"text": strings.Repeat("some text ", 50_000)}
	ask := func(path string) func(context.Context) {
		return func(ctx context.Context) { _, _ = d.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx) }
	}
	all := []func(context.Context){
		ask("/api/v1/pods"), ask("/api/v1/events"), ask("/openapi/v2"), ask("/openapi/v3/api/v1"), ask("/apis/metrics.k8s.io/v1beta1/pods"),
		ask("/metrics"), ask("/api/v1/configmaps?watch=true"), ask("/api/v1/nodes/" + d.nodes[0] + "/proxy/stats/summary"), ask("/apis"),
		func(ctx context.Context) {
			_, _ = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: target}, Data: large}, metav1.CreateOptions{})
		},
		func(ctx context.Context) {
			_, _ = maps.Patch(ctx, target, types.MergePatchType, change(int(time.Now().UnixNano())), metav1.PatchOptions{})
		},
		func(ctx context.Context) { _ = maps.Delete(ctx, target, metav1.DeleteOptions{}) },
		func(ctx context.Context) {
			if watch, err := maps.Watch(ctx, metav1.ListOptions{}); err == nil {
				watch.Stop()
			}
		},
	}
	for n := range 30 {
		var asking sync.WaitGroup
		for i, one := range all {
			asking.Go(func() {
				impatient, cancel := context.WithTimeout(ctx, time.Duration((n*7+i*3)%41)*time.Millisecond)
				defer cancel()
				one(impatient)
			})
		}
		asking.Wait()
	}
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--watch"}, {"logs", "--follow", "--selector=app=budget"}, {"port-forward", "deployment/budget", "18080:8080"},
	} {
		impatient, cancel := context.WithTimeout(ctx, 3*time.Second)
		_ = d.Server.Host.Kedge(impatient, append([]string{"kubectl", "--namespace=" + cluster.Namespace}, args...)...).Run()
		cancel()
	}
	return nil
}

// changeNodes changes nodes while their kubelets and controllers do the same.
func (d *day) changeNodes(ctx context.Context) error {
	nodes := d.Client.CoreV1().Nodes()
	for n := range 60 {
		for _, name := range d.nodes {
			patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"changed": "%d"}}, "spec": {"unschedulable": %t}}`, n, n%20 == 7)
			if _, err := nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return err
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// quota has a namespace whose Deployment wants more than it may have, and deletes the namespace.
func (d *day) quota(ctx context.Context) error {
	const namespace = "tight"
	err := d.applyIn(ctx, namespace, `
apiVersion: v1
kind: Namespace
metadata: {name: tight}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: one, namespace: tight}
spec: {hard: {pods: "1"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: two, namespace: tight}
spec:
  replicas: 2
  selector: {matchLabels: {app: two}}
  template:
    metadata: {labels: {app: two}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: IMAGE, args: [sleep]}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: three, namespace: tight}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: IMAGE, args: [exit, "0"]}]}
`)
	if err != nil {
		return err
	}
	err = d.until(ctx, "an Event about the quota", func() error {
		events, err := d.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := d.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return d.until(ctx, "the namespace to go", func() error {
		_, err := d.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// deleteAll deletes what interrupted work has left.
func (d *day) deleteAll(ctx context.Context) error {
	return d.until(ctx, "deletions", func() error {
		_, err := d.TryKubectl("", "delete", "--wait=false", "--ignore-not-found", "statefulsets,deployments,jobs,pods,pvc,pdb,configmaps", "--all")
		return err
	})
}
