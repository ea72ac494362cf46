package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// podRow is a pod in a list.
type podRow struct {
	Namespace, Name, State, Node string
	Well                         bool
	Restarts                     int32
	Created                      time.Time
}

// podTable is a list of pods. Everywhere is set if it has those of several namespaces.
type podTable struct {
	Pods       []podRow
	Now        time.Time
	Everywhere bool
}

func newPodRow(pod *corev1.Pod) podRow {
	row := podRow{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Created: pod.CreationTimestamp.Time}
	row.State, row.Well = podState(pod)
	for _, s := range pod.Status.ContainerStatuses {
		row.Restarts += s.RestartCount
	}
	return row
}

// podState returns a word for the state of a pod, as kubectl does.
func podState(pod *corev1.Pod) (state string, well bool) {
	if pod.DeletionTimestamp != nil {
		return "Terminating", true
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range statuses {
			if waits := s.State.Waiting; waits != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waits.Reason) {
				return waits.Reason, false
			}
		}
	}
	switch phase := pod.Status.Phase; phase {
	case corev1.PodSucceeded:
		return "Completed", true
	case corev1.PodRunning:
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
				return "Not ready", false
			}
		}
		return "Running", true
	case corev1.PodPending:
		return "Pending", false
	default:
		return cmp.Or(pod.Status.Reason, string(phase), "Unknown"), false
	}
}

// workloadRow is a workload with its pods. Pods without an owner have a row of their own without a kind.
type workloadRow struct {
	Kind, Name string
	// Ready is such as "2 of 3", or empty.
	Ready string
	Well  bool
	Pods  []podRow
}

// namespace shows the workloads of a namespace with their pods.
var namespace = view{"namespace", func(v *visit) string { return "Namespace " + v.value("namespace") }, func(v *visit) any {
	name := v.value("namespace")
	services := listed(v, "Services", v.Clients.Kubernetes.CoreV1().Services(name).List)
	var shown []corev1.Service
	if services != nil {
		shown = services.Items
	}
	return struct {
		Name      string
		Now       time.Time
		Wrong     unwell
		Workloads []workloadRow
		Services  []corev1.Service
	}{name, v.now, v.wrong(name), v.workloads(name), shown}
}}

// workloads returns the workloads of a namespace. A workload without pods is shown, too.
func (v *visit) workloads(namespace string) (rows []workloadRow) {
	api := v.Clients.Kubernetes
	place := map[string]int{}
	add := func(kind, name string, ready, want int32) {
		place[kind+"/"+name] = len(rows)
		rows = append(rows, workloadRow{Kind: kind, Name: name, Ready: fmt.Sprintf("%d of %d", ready, want), Well: ready >= want})
	}
	owners := map[string]string{} // of the ReplicaSets and Jobs of others
	if all := listed(v, "Deployments", api.AppsV1().Deployments(namespace).List); all != nil {
		for _, d := range all.Items {
			add("Deployment", d.Name, d.Status.ReadyReplicas, ptr.Deref(d.Spec.Replicas, 1))
		}
	}
	if all := listed(v, "StatefulSets", api.AppsV1().StatefulSets(namespace).List); all != nil {
		for _, s := range all.Items {
			add("StatefulSet", s.Name, s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 1))
		}
	}
	if all := listed(v, "DaemonSets", api.AppsV1().DaemonSets(namespace).List); all != nil {
		for _, d := range all.Items {
			add("DaemonSet", d.Name, d.Status.NumberReady, d.Status.DesiredNumberScheduled)
		}
	}
	if all := listed(v, "ReplicaSets", api.AppsV1().ReplicaSets(namespace).List); all != nil {
		for _, r := range all.Items {
			if owner := ownerOf(&r); owner != "" {
				owners["ReplicaSet/"+r.Name] = owner
			} else {
				add("ReplicaSet", r.Name, r.Status.ReadyReplicas, ptr.Deref(r.Spec.Replicas, 1))
			}
		}
	}
	if all := listed(v, "CronJobs", api.BatchV1().CronJobs(namespace).List); all != nil {
		for _, c := range all.Items {
			place["CronJob/"+c.Name] = len(rows)
			rows = append(rows, workloadRow{Kind: "CronJob", Name: c.Name, Well: true})
		}
	}
	if all := listed(v, "Jobs", api.BatchV1().Jobs(namespace).List); all != nil {
		for _, j := range all.Items {
			if owner := ownerOf(&j); owner != "" {
				owners["Job/"+j.Name] = owner
			} else {
				add("Job", j.Name, j.Status.Succeeded, ptr.Deref(j.Spec.Completions, 1))
			}
		}
	}
	if all := listed(v, "pods", api.CoreV1().Pods(namespace).List); all != nil {
		for _, pod := range all.Items {
			owner := ownerOf(&pod)
			owner = cmp.Or(owners[owner], owner)
			if i, known := place[owner]; known {
				rows[i].Pods = append(rows[i].Pods, newPodRow(&pod))
				continue
			}
			row := newPodRow(&pod)
			rows = append(rows, workloadRow{Name: pod.Name, Well: row.Well, Pods: []podRow{row}})
		}
	}
	return rows
}

// ownerOf returns KIND/NAME of the controller of an object, or nothing.
func ownerOf(object metav1.Object) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return owner.Kind + "/" + owner.Name
	}
	return ""
}
