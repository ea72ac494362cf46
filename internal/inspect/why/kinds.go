package why

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kind is a kind of object that this package explains.
type kind struct {
	// name is that in the API.
	name string
	// words are how users call it.
	words []string
	// global is true if the objects are in no namespace.
	global bool
	// follow returns the steps of an object.
	follow func(w *world, namespace, name string) ([]Step, error)
	// all returns a report of each object of a namespace that belongs to no other one.
	all func(w *world, namespace string) []*Report
}

// client is what each typed client of client-go has.
type client[T metav1.Object, L runtime.Object] interface {
	getter[T]
	lister[L]
}

// known returns all kinds.
func known() []kind {
	return append([]kind{
		explained("Pod", "pods", []string{"pod", "pods", "po"}, func(w *world, namespace string) client[*corev1.Pod, *corev1.PodList] {
			return w.Kubernetes.CoreV1().Pods(namespace)
		}, along(podWay)),
		explained("Deployment", "Deployments", []string{"deployment", "deployments", "deploy"}, func(w *world, namespace string) client[*appsv1.Deployment, *appsv1.DeploymentList] {
			return w.Kubernetes.AppsV1().Deployments(namespace)
		}, deploymentSteps),
		explained("StatefulSet", "StatefulSets", []string{"statefulset", "statefulsets", "sts"}, func(w *world, namespace string) client[*appsv1.StatefulSet, *appsv1.StatefulSetList] {
			return w.Kubernetes.AppsV1().StatefulSets(namespace)
		}, func(w *world, s *appsv1.StatefulSet) []Step { return walk(w, ofStatefulSet(s), workloadWay) }),
		explained("DaemonSet", "DaemonSets", []string{"daemonset", "daemonsets", "ds"}, func(w *world, namespace string) client[*appsv1.DaemonSet, *appsv1.DaemonSetList] {
			return w.Kubernetes.AppsV1().DaemonSets(namespace)
		}, daemonSetSteps),
		explained("ReplicaSet", "ReplicaSets", []string{"replicaset", "replicasets", "rs"}, func(w *world, namespace string) client[*appsv1.ReplicaSet, *appsv1.ReplicaSetList] {
			return w.Kubernetes.AppsV1().ReplicaSets(namespace)
		}, func(w *world, r *appsv1.ReplicaSet) []Step { return walk(w, ofReplicaSet(r), workloadWay) }),
		explained("Job", "Jobs", []string{"job", "jobs"}, func(w *world, namespace string) client[*batchv1.Job, *batchv1.JobList] {
			return w.Kubernetes.BatchV1().Jobs(namespace)
		}, jobSteps),
		explained("CronJob", "CronJobs", []string{"cronjob", "cronjobs", "cj"}, func(w *world, namespace string) client[*batchv1.CronJob, *batchv1.CronJobList] {
			return w.Kubernetes.BatchV1().CronJobs(namespace)
		}, along(cronJobWay)),
		explained("Service", "Services", []string{"service", "services", "svc"}, func(w *world, namespace string) client[*corev1.Service, *corev1.ServiceList] {
			return w.Kubernetes.CoreV1().Services(namespace)
		}, along(serviceWay)),
		explained("Ingress", "Ingresses", []string{"ingress", "ingresses", "ing"}, func(w *world, namespace string) client[*networkingv1.Ingress, *networkingv1.IngressList] {
			return w.Kubernetes.NetworkingV1().Ingresses(namespace)
		}, along(ingressWay)),
		explained("PersistentVolumeClaim", "claims", []string{"persistentvolumeclaim", "persistentvolumeclaims", "pvc", "claim"}, func(w *world, namespace string) client[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList] {
			return w.Kubernetes.CoreV1().PersistentVolumeClaims(namespace)
		}, along(claimWay)),
		ofCluster(explained("Node", "nodes", []string{"node", "nodes", "no"}, func(w *world, _ string) client[*corev1.Node, *corev1.NodeList] { return w.Kubernetes.CoreV1().Nodes() }, along(nodeWay))),
		ofCluster(explained("Namespace", "namespaces", []string{"namespace", "namespaces", "ns"}, func(w *world, _ string) client[*corev1.Namespace, *corev1.NamespaceList] {
			return w.Kubernetes.CoreV1().Namespaces()
		}, along(namespaceWay))),
	}, custom()...)
}

// explained makes a kind. plural is what a sentence calls its objects.
func explained[T metav1.Object, L runtime.Object](name, plural string, words []string, ask func(w *world, namespace string) client[T, L], steps func(*world, T) []Step) kind {
	return kind{
		name: name, words: words,
		follow: func(w *world, namespace, object string) ([]Step, error) {
			found, ok := get(w, ask(w, namespace), plural, namespace, object)
			switch {
			case ok:
				return steps(w, found), nil
			case w.fault != nil:
				return nil, w.fault
			case w.isHidden(plural):
				return nil, fmt.Errorf("you may not read %s%s", plural, in(namespace))
			}
			return nil, missing(fmt.Sprintf("there is no %s %s%s: see kubectl get %s", words[0], object, in(namespace), words[0]))
		},
		all: func(w *world, namespace string) (reports []*Report) {
			objects, ok := list(w, ask(w, namespace), plural, namespace)
			if !ok {
				return nil
			}
			_ = meta.EachListItem(objects, func(item runtime.Object) error {
				object := item.(T)
				if metav1.GetControllerOf(object) == nil {
					reports = append(reports, &Report{Object: Object{Kind: name, Namespace: object.GetNamespace(), Name: object.GetName()}, Steps: steps(w, object), Self: item})
				}
				return nil
			})
			return reports
		},
	}
}

func ofCluster(k kind) kind {
	k.global = true
	return k
}

// along returns the steps of one way.
func along[T any](way []stage[T]) func(*world, T) []Step {
	return func(w *world, object T) []Step { return walk(w, object, way) }
}

// in returns the words for a namespace.
func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

// missing is the error for an object that does not exist.
type missing string

func (m missing) Error() string { return string(m) }

// IsMissing tells whether Explain has failed because there is no such object.
func IsMissing(err error) bool {
	var m missing
	return errors.As(err, &m)
}

// Parse reads the object that a user asks about: KIND/NAME, or the two as words.
func Parse(namespace string, words ...string) (Object, error) {
	kindWord, name, ok := strings.Cut(strings.Join(words, "/"), "/")
	if !ok || kindWord == "" || name == "" || strings.Contains(name, "/") {
		return Object{}, fmt.Errorf("name one object, such as pod/web or deployment/web, in place of %q", strings.Join(words, " "))
	}
	for _, k := range known() {
		if !slices.Contains(k.words, strings.ToLower(kindWord)) {
			continue
		}
		if k.global {
			namespace = ""
		}
		return Object{Kind: k.name, Namespace: namespace, Name: name}, nil
	}
	var explains []string
	for _, k := range known() {
		explains = append(explains, k.words[0])
	}
	return Object{}, fmt.Errorf("kedge cannot explain a %q. It explains %s", kindWord, strings.Join(explains, ", "))
}
