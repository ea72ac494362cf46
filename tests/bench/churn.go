package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

const churnNamespace = "churn"

// How often things happen in each minute of churn, or every how many minutes.
const (
	rolloutEvery = 5
	explainEvery = 5
	// jobsKept is how many Jobs stay, as those of a CronJob do.
	jobsKept        = 3
	eventsPerMinute = 20
	// Each leader of an operator renews its Lease every two seconds.
	leaders           = 5
	renewalsPerMinute = 30
	appliesPerMinute  = 10
	// releasesKept is Helm's default, and releaseKiB what a chart of some size takes.
	releasesKept = 10
	releaseKiB   = 24
)

// explained are asked for in turns.
var explained = []string{"pods.spec.containers", "prometheuses.spec", "deployments.spec.strategy", "rollouts.spec", "certificates.spec", "ingressroutes.spec"}

// churn is what happens on a node over time. Each minute begins as soon as the one before is over.
type churn struct {
	cluster *livedCluster
	// apps are rolled out.
	apps    *apps
	minutes int
	leases  []*coordinationv1.Lease
	// release is the newest release of Helm.
	release *corev1.Secret
}

func (c *churn) run(ctx context.Context) error {
	if err := c.cluster.makeNamespace(ctx, churnNamespace); err != nil {
		return err
	}
	// The program's text must not count as memory of the host's cgroup.
	if err := readAll(c.kubectl()); err != nil {
		return err
	}
	for n := range leaders {
		lease, err := c.cluster.client.CoordinationV1().Leases(churnNamespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("operator-", n)}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		c.leases = append(c.leases, lease)
	}
	for minute := range c.minutes {
		for _, part := range []func(context.Context, int) error{c.startJob, c.renewLeases, c.createEvents, c.apply, c.upgradeRelease, c.rollOut, c.explain} {
			if err := part(ctx, minute); err != nil {
				return fmt.Errorf("minute %d: %w", minute, err)
			}
		}
	}
	return c.waitJob(ctx, c.minutes-1)
}

// remove deletes what run has made. Events are deleted at the end of a life.
func (c *churn) remove(ctx context.Context) error {
	return c.cluster.removeNamespaces(ctx, churnNamespace)
}

func jobName(minute int) string { return fmt.Sprint("job-", minute) }

// startJob starts a Job after the one before has ended, and deletes an old one.
func (c *churn) startJob(ctx context.Context, minute int) error {
	jobs := c.cluster.client.BatchV1().Jobs(churnNamespace)
	if minute > 0 {
		if err := c.waitJob(ctx, minute-1); err != nil {
			return err
		}
	}
	if old := minute - jobsKept; old >= 0 {
		background := metav1.DeletePropagationBackground
		if err := jobs.Delete(ctx, jobName(old), metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			return err
		}
	}
	spec := appPod(image.BusyboxName)
	spec.Containers[0].Command = []string{"true"}
	spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := jobs.Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: jobName(minute)},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}, metav1.CreateOptions{})
	return err
}

func (c *churn) waitJob(ctx context.Context, minute int) error {
	err := until(ctx, "a Job to end", func(ctx context.Context) error {
		job, err := c.cluster.client.BatchV1().Jobs(churnNamespace).Get(ctx, jobName(minute), metav1.GetOptions{})
		if err == nil && job.Status.Succeeded == 0 {
			err = fmt.Errorf("%s has not succeeded", job.Name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastEvents(c.cluster.client))
	}
	return nil
}

func (c *churn) renewLeases(ctx context.Context, _ int) error {
	for range renewalsPerMinute {
		for n, lease := range c.leases {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			renewed, err := c.cluster.client.CoordinationV1().Leases(churnNamespace).Update(ctx, lease, metav1.UpdateOptions{})
			if err != nil {
				return err
			}
			c.leases[n] = renewed
		}
	}
	return nil
}

func (c *churn) createEvents(ctx context.Context, minute int) error {
	for n := range eventsPerMinute {
		_, err := c.cluster.client.CoreV1().Events(churnNamespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("event-%d-%d", minute, n)},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: churnNamespace, Name: fmt.Sprint("pod-", minute)},
			Type:           corev1.EventTypeWarning,
			Reason:         "Unhealthy",
			Message:        fmt.Sprintf("Readiness probe failed: Get \"http://10.42.0.%d:8080/ready\": context deadline exceeded", n),
			FirstTimestamp: metav1.Now(),
			LastTimestamp:  metav1.Now(),
			Count:          1,
			Source:         corev1.EventSource{Component: "bench", Host: c.cluster.host.Name},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// apply applies objects on the server's side, as what keeps a cluster in step with a repository does: in
// turns a ConfigMap and a ServiceMonitor.
func (c *churn) apply(ctx context.Context, minute int) error {
	for n := range appliesPerMinute {
		name := fmt.Sprint("applied-", n)
		resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		object := map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"data": map[string]any{"minute": fmt.Sprint(minute), "settings": string(randomText(n, 1024))},
		}
		if n%2 == 1 {
			resource = schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "servicemonitors"}
			object = map[string]any{
				"apiVersion": resource.GroupVersion().String(), "kind": "ServiceMonitor",
				"spec": map[string]any{
					"selector":  map[string]any{"matchLabels": map[string]any{"minute": fmt.Sprint(minute)}},
					"endpoints": []any{map[string]any{"port": "metrics", "interval": "30s"}},
				},
			}
		}
		object["metadata"] = map[string]any{"name": name, "namespace": churnNamespace}
		_, err := c.cluster.dynamic.Resource(resource).Namespace(churnNamespace).Apply(ctx, name, &unstructured.Unstructured{Object: object}, metav1.ApplyOptions{FieldManager: "bench", Force: true})
		if err != nil {
			return fmt.Errorf("apply %s: %w", resource.Resource, err)
		}
	}
	return nil
}

// upgradeRelease writes what `helm upgrade` writes about a release: its Secret, the end of the
// one before, and no more than releasesKept of them.
func (c *churn) upgradeRelease(ctx context.Context, minute int) error {
	secrets := c.cluster.client.CoreV1().Secrets(churnNamespace)
	if c.release != nil {
		c.release.Labels["status"] = "superseded"
		if _, err := secrets.Update(ctx, c.release, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	name := func(version int) string { return fmt.Sprint("sh.helm.release.v1.shop.v", version) }
	var err error
	c.release, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name(minute + 1),
			Labels: map[string]string{"name": "shop", "owner": "helm", "status": "deployed", "version": fmt.Sprint(minute + 1)},
		},
		Type: "helm.sh/release.v1",
		Data: map[string][]byte{"release": randomText(minute, releaseKiB<<10)},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := secrets.Delete(ctx, name(minute+1-releasesKept), metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

func (c *churn) rollOut(ctx context.Context, minute int) error {
	if minute%rolloutEvery != 0 {
		return nil
	}
	return c.apps.rollOut(ctx, minute/rolloutEvery)
}

// explain asks as a user does, with upstream's kubectl, which reads OpenAPI documents.
func (c *churn) explain(ctx context.Context, minute int) error {
	if minute%explainEvery != 0 {
		return nil
	}
	kind := explained[minute/explainEvery%len(explained)]
	output, err := c.cluster.host.Command(ctx, c.kubectl(), "--kubeconfig="+c.cluster.kubeconfig, "--cache-dir="+c.cluster.scratch, "explain", kind).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl explain %s: %w: %s", kind, err, output)
	}
	return nil
}

func (c *churn) kubectl() string { return filepath.Join(c.cluster.repository, binariesDir, clientName) }
