package why

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finalizerOwners are who removes a finalizer, and when.
var finalizerOwners = map[string]string{
	"kubernetes":                                           "the controller manager removes it when the namespace is empty",
	"foregroundDeletion":                                   "the controller manager removes it when the objects that belong to it are gone",
	"kubernetes.io/pvc-protection":                         "the controller manager removes it when no pod uses the claim",
	"kubernetes.io/pv-protection":                          "the controller manager removes it when no claim has the volume",
	"service.kubernetes.io/load-balancer-cleanup":          "the load balancer removes it when the addresses of the Service are free",
	"batch.kubernetes.io/job-tracking":                     "the controller manager removes it when it has counted the pod for its Job",
	"apiextensions.k8s.io/customresourcecleanup.finalizer": "the API server removes it when all objects of the kind are gone",
}

// stuck says what keeps an object that was deleted. kind is how kubectl calls it.
func stuck(w *world, kind string, object metav1.Object) *finding {
	deleted := object.GetDeletionTimestamp()
	if deleted == nil || len(object.GetFinalizers()) == 0 || w.Now().Before(deleted.Add(time.Minute)) {
		return nil // finalizers are removed within seconds if all is well
	}
	finalizer := object.GetFinalizers()[0]
	where := ""
	if namespace := object.GetNamespace(); namespace != "" {
		where = "-n " + namespace + " "
	}
	if owner, ok := finalizerOwners[finalizer]; ok {
		return found("if that does not happen, read the log of the servers: journalctl -u kedge", "the object was deleted %s ago, and the finalizer %s keeps it: %s", since(w, deleted.Time), finalizer, owner)
	}
	return found(fmt.Sprintf(`start that controller. If it is gone for good: kubectl %spatch %s %s --type=merge -p '{"metadata":{"finalizers":null}}'`, where, kind, object.GetName()),
		"the object was deleted %s ago, and the finalizer %s keeps it until the controller that knows this finalizer removes it", since(w, deleted.Time), finalizer)
}

// namespaceWay is what happens to a namespace.
var namespaceWay = []stage[*corev1.Namespace]{
	{name: "deletion", rules: []rule[*corev1.Namespace]{
		{"namespace-discovery", func(_ *world, n *corev1.Namespace) *finding {
			c := namespaceCondition(n, corev1.NamespaceDeletionDiscoveryFailure)
			if c == nil {
				return nil
			}
			return found("see which APIService is not Available: kubectl get apiservices. Start its server, or delete it: kubectl delete apiservice NAME", "the namespace was deleted, and an API that may have objects in it does not answer: %s", plain(c.Message))
		}},
		{"namespace-finalizers", func(w *world, n *corev1.Namespace) *finding {
			c := namespaceCondition(n, corev1.NamespaceFinalizersRemaining)
			if c == nil || n.DeletionTimestamp == nil || w.Now().Before(n.DeletionTimestamp.Add(time.Minute)) {
				return nil
			}
			return found("start the programs that know these finalizers. If they are gone for good, remove the finalizers from the objects: kubectl -n "+n.Name+" edit KIND NAME", "the namespace was deleted %s ago, and finalizers keep objects in it: %s", since(w, n.DeletionTimestamp.Time), remaining(c, "has finalizers remaining: "))
		}},
		{"namespace-content", func(w *world, n *corev1.Namespace) *finding {
			c := namespaceCondition(n, corev1.NamespaceContentRemaining)
			if c == nil || n.DeletionTimestamp == nil || w.Now().Before(n.DeletionTimestamp.Add(time.Minute)) {
				return nil
			}
			return found("look at what remains: kubectl api-resources --verbs=list --namespaced -o name | xargs -n1 kubectl get --ignore-not-found --show-kind -n "+n.Name, "the namespace was deleted %s ago, and still has objects: %s", since(w, n.DeletionTimestamp.Time), remaining(c, "Some resources are remaining: "))
		}},
	}, passed: func(_ *world, n *corev1.Namespace) string {
		if n.DeletionTimestamp != nil {
			return ""
		}
		return "nobody has deleted it"
	}, waiting: "the namespace is being deleted"},
}

// remaining returns what the condition of a namespace says behind a mark.
func remaining(c *corev1.NamespaceCondition, mark string) string {
	return plain(strings.NewReplacer(". has ", " has ", "resource instances", "objects").Replace(afterLast(c.Message, mark)))
}

func namespaceCondition(n *corev1.Namespace, kind corev1.NamespaceConditionType) *corev1.NamespaceCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
