package bench

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/assets"
)

// podsPerApp is how many pods a Deployment of apps has at most.
const podsPerApp = 4

// apps are Deployments of pods that do nothing, each with a Service.
type apps struct {
	cluster *livedCluster
	// first is the number of the first pod, and pods is how many there are.
	first, pods int
}

func (a *apps) namespace() string { return fmt.Sprint("apps-", a.first) }

// names returns the names of the Deployments.
func (a *apps) names() (names []string) {
	for n := 0; n < a.pods; n += podsPerApp {
		names = append(names, fmt.Sprint("app-", a.first+n))
	}
	return names
}

// run creates everything, and waits until the pods are available.
func (a *apps) run(ctx context.Context) error {
	if err := a.cluster.makeNamespace(ctx, a.namespace()); err != nil {
		return err
	}
	left := a.pods
	for _, name := range a.names() {
		app := deployment(name, int32(min(left, podsPerApp)))
		left -= podsPerApp
		if _, err := a.cluster.client.AppsV1().Deployments(a.namespace()).Create(ctx, app, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := a.cluster.client.CoreV1().Services(a.namespace()).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Selector: app.Spec.Selector.MatchLabels, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return a.available(ctx)
}

// available waits until the pods of all Deployments are the newest, and available.
func (a *apps) available(ctx context.Context) error {
	err := until(ctx, "Deployments to be available", func(ctx context.Context) error {
		all, err := a.cluster.client.AppsV1().Deployments(a.namespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, app := range all.Items {
			want, is := *app.Spec.Replicas, app.Status
			if is.ObservedGeneration < app.Generation || is.UpdatedReplicas != want || is.Replicas != want || is.AvailableReplicas != want {
				return fmt.Errorf("%s has %d new pods, %d pods in all, %d available, of %d", app.Name, is.UpdatedReplicas, is.Replicas, is.AvailableReplicas, want)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastEvents(a.cluster.client))
	}
	return nil
}

// rollOut replaces the pods of a Deployment, and waits until that is done.
func (a *apps) rollOut(ctx context.Context, n int) error {
	names := a.names()
	change := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"bench/restarted":"%d"}}}}}`, n)
	if _, err := a.cluster.client.AppsV1().Deployments(a.namespace()).Patch(ctx, names[n%len(names)], types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		return err
	}
	return a.available(ctx)
}

// remove deletes everything, and waits until it is gone.
func (a *apps) remove(ctx context.Context) error {
	return a.cluster.removeNamespaces(ctx, a.namespace())
}

// deployment returns a Deployment of pods that are as verbose as usual.
func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := appLabels(name)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/instance": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: appPod(assets.PauseImage)},
		},
	}
}

// appLabels are labels as charts give them.
func appLabels(name string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":       name,
		"app.kubernetes.io/instance":   name,
		"app.kubernetes.io/version":    "1.27.3",
		"app.kubernetes.io/managed-by": "Helm",
		"helm.sh/chart":                name + "-0.8.15",
	}
}

func appPod(image string) corev1.PodSpec {
	var environment []corev1.EnvVar
	for _, name := range strings.Fields("LOG_LEVEL LISTEN_ADDRESS DATABASE_HOST DATABASE_NAME CACHE_HOST FEATURE_FLAGS TIMEZONE") {
		environment = append(environment, corev1.EnvVar{Name: name, Value: "value-of-" + strings.ToLower(name)})
	}
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{
			Name:            "main",
			Image:           image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Env:             environment,
			Ports:           []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("8Mi"),
			}},
			VolumeMounts: []corev1.VolumeMount{{Name: "cache", MountPath: "/var/cache/app"}},
		}},
		Volumes: []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}
}
