package why

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/foreigntext"
)

// workload is what all objects have in common that run pods.
type workload struct {
	metav1.Object
	// kind is how kubectl calls it.
	kind string
	// wanted is how many pods there should be, and ready is how many there are.
	wanted, ready int32
	// makers are what makes the pods: the ReplicaSets of a Deployment, the newest first, or else the object itself.
	makers []metav1.Object
	// whole says what holds if all is well.
	whole string
}

// workloadWay is what happens to each of them.
var workloadWay = []stage[*workload]{
	{name: "deletion", rules: []rule[*workload]{
		{"workload-finalizers", func(w *world, o *workload) *finding { return stuck(w, o.kind, o) }},
	}, passed: func(_ *world, o *workload) string {
		if o.GetDeletionTimestamp() != nil {
			return ""
		}
		return "nobody has deleted it"
	}, waiting: "it is being deleted"},
	{name: "admission", rules: admission, passed: func(*world, *workload) string { return "the API server accepts its pods" }},
	{name: "pods", rules: []rule[*workload]{
		{"pod-of-workload", func(w *world, o *workload) *finding {
			if o.ready >= o.wanted {
				return nil
			}
			replaced := false
			for _, pod := range newestFirst(podsMadeBy(w, o)) {
				if finished(&pod) && replaced && o.kind != "job" {
					continue // a newer pod is in its place
				}
				replaced = true
				if f := failed(walk(w, &pod, podWay)); f != nil {
					f.says = fmt.Sprintf("pod %s: %s", pod.Name, f.says)
					return f
				}
			}
			return nil
		}},
	}, passed: func(_ *world, o *workload) string {
		if o.ready < o.wanted {
			return ""
		}
		return o.whole
	}, waiting: "some pods are not ready yet"},
}

// admission says why the API refuses the pods of a workload.
var admission = []rule[*workload]{
	{"quota", refused(`exceeded quota: (\S+), requested: ([^,]+).*, used: ([^,]+).*, limited: ([^,]+)`, func(o *workload, m []string) *finding {
		return found(fmt.Sprintf("raise the quota (kubectl -n %s edit resourcequota %s), or delete other pods", o.GetNamespace(), foreigntext.Argument(m[1])), "the ResourceQuota %s of the namespace allows no more pods: the next pod asks for %s, %s is used, and the limit is %s", m[1], m[2], m[3], m[4])
	})},
	{"quota-without-requests", refused(`failed quota: (\S+): must specify (.+)$`, func(o *workload, m []string) *finding {
		return found("give each container these resources.requests and resources.limits, or create a LimitRange with defaults for them", "the ResourceQuota %s of the namespace allows only pods that state their resources, and these containers do not: %s", m[1], plain(m[2]))
	})},
	{"pod-security", refused(`violates PodSecurity "([^"]+)": (.+)$`, func(o *workload, m []string) *finding {
		return found(fmt.Sprintf("set in the securityContext of the pod what the message names, or let the namespace have such pods: kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite", o.GetNamespace()), "the pod-security label of the namespace (%s) forbids the pods: %s", m[1], plain(m[2]))
	})},
	{"service-account", refused(`serviceaccount "([^"]+)" not found`, func(o *workload, m []string) *finding {
		return found(fmt.Sprintf("kubectl -n %s create serviceaccount %s, or correct serviceAccountName", o.GetNamespace(), foreigntext.Argument(m[1])), "the pods need the ServiceAccount %s, and namespace %s has none of that name", m[1], o.GetNamespace())
	})},
	{"priority-class", refused(`no PriorityClass with name (\S+) was found`, func(_ *workload, m []string) *finding {
		return found("create the PriorityClass, or correct priorityClassName: kubectl get priorityclass", "the pods need the PriorityClass %s, and the cluster has none of that name", m[1])
	})},
	{"runtime-class-missing", refused(`RuntimeClass "?([^" ]+)"? not found`, func(_ *workload, m []string) *finding {
		return found("create the RuntimeClass, or correct runtimeClassName: kubectl get runtimeclass. See docs/runtimes.md", "the pods need the RuntimeClass %s, and the cluster has none of that name", m[1])
	})},
	{"limit-range", refused(`forbidden: \[?((?:maximum \S+ usage|minimum \S+ usage|\S+ max limit to request ratio) per .+?)\]?$`, func(o *workload, m []string) *finding {
		return found(fmt.Sprintf("correct the resources of the container: kubectl -n %s describe limitrange", o.GetNamespace()), "a LimitRange of the namespace forbids the pods: %s", plain(m[1]))
	})},
	{"webhook-away", refused(`failed calling webhook "([^"]+)": (.+)$`, func(_ *workload, m []string) *finding {
		return found("see whether the pods of the webhook run. If it is gone for good, delete its configuration: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations", "the API server must ask the webhook %s about each pod, and cannot: %s", m[1], plain(afterLast(m[2], ": ")))
	})},
	{"webhook-denies", refused(`admission webhook "([^"]+)" denied the request:? (.+)$`, func(_ *workload, m []string) *finding {
		return found("change the template of the pods as the message says, or ask the owner of the webhook", "the webhook %s forbids the pods: %s", m[1], plain(m[2]))
	})},
	{"policy-denies", refused(`ValidatingAdmissionPolicy '([^']+)' (?:with binding '[^']+' )?denied request: (.+)$`, func(_ *workload, m []string) *finding {
		return found("change the template of the pods as the message says. The rules of the policy: kubectl get validatingadmissionpolicy "+foreigntext.Argument(m[1])+" -o yaml", "the ValidatingAdmissionPolicy %s forbids the pods: %s", m[1], plain(m[2]))
	})},
	{"pods-refused", refused(`(.+)`, func(_ *workload, m []string) *finding {
		return found("correct the template of the pods", "the API server refuses the pods: %s", plain(strings.TrimPrefix(m[1], "Error creating: ")))
	})},
}

// refused applies a rule to workloads whose newest attempt to make a pod was refused with such an error.
func refused(pattern string, find func(o *workload, match []string) *finding) func(*world, *workload) *finding {
	expression := regexp.MustCompile(`(?s)` + pattern)
	return func(w *world, o *workload) *finding {
		message := refusal(w, o)
		if message == "" {
			return nil
		}
		match := expression.FindStringSubmatch(message)
		if match == nil {
			return nil
		}
		return find(o, match)
	}
}

// refusal returns the error of the newest attempt to make a pod, if pods are missing.
func refusal(w *world, o *workload) string {
	if o.ready >= o.wanted {
		return ""
	}
	pods := podsMadeBy(w, o)
	for _, maker := range o.makers {
		if set, ok := maker.(*appsv1.ReplicaSet); ok {
			for _, c := range set.Status.Conditions {
				if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue && c.Reason == "FailedCreate" {
					return c.Message
				}
			}
		}
		e := w.warning(maker, "FailedCreate")
		if e == nil || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.CreationTimestamp.After(events.Seen(e)) }) {
			continue
		}
		return e.Message
	}
	return ""
}

// podsMadeBy returns the pods of a workload.
func podsMadeBy(w *world, o *workload) (pods []corev1.Pod) {
	makers := map[types.UID]bool{}
	for _, maker := range o.makers {
		makers[maker.GetUID()] = true
	}
	for _, pod := range podsOf(w, o.GetNamespace()) {
		if owner := metav1.GetControllerOf(&pod); owner != nil && makers[owner.UID] {
			pods = append(pods, pod)
		}
	}
	return pods
}

// newestFirst sorts pods.
func newestFirst(pods []corev1.Pod) []corev1.Pod {
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return pods
}

// deploymentRules are those that only Deployments have.
var deploymentRules = []rule[*appsv1.Deployment]{
	{"rollout-paused", func(_ *world, d *appsv1.Deployment) *finding {
		if !d.Spec.Paused || d.Status.UpdatedReplicas >= ptr.Deref(d.Spec.Replicas, 1) {
			return nil
		}
		return found(fmt.Sprintf("kubectl -n %s rollout resume deployment/%s", d.Namespace, d.Name), "the Deployment is paused, so its newest version is not rolled out")
	}},
	{"no-replicas", func(_ *world, d *appsv1.Deployment) *finding {
		if ptr.Deref(d.Spec.Replicas, 1) > 0 {
			return nil
		}
		f := found(fmt.Sprintf("kubectl -n %s scale deployment/%s --replicas=1", d.Namespace, d.Name), "the Deployment has replicas: 0, so it runs no pod")
		f.mild = true
		return f
	}},
}

func ofDeployment(w *world, d *appsv1.Deployment) *workload {
	wanted := ptr.Deref(d.Spec.Replicas, 1)
	o := &workload{Object: d, kind: "deployment", wanted: wanted, ready: min(d.Status.ReadyReplicas, d.Status.UpdatedReplicas), whole: fmt.Sprintf("%d of %d pods are ready", d.Status.ReadyReplicas, wanted)}
	if d.Status.Replicas > d.Status.UpdatedReplicas {
		o.ready = min(o.ready, wanted-1) // pods of the version before are still there
	}
	all, ok := list(w, w.Kubernetes.AppsV1().ReplicaSets(d.Namespace), "ReplicaSets", d.Namespace)
	if !ok {
		return o
	}
	for i := range all.Items {
		if metav1.IsControlledBy(&all.Items[i], d) {
			o.makers = append(o.makers, &all.Items[i])
		}
	}
	slices.SortFunc(o.makers, func(a, b metav1.Object) int {
		return b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time)
	})
	return o
}

func ofStatefulSet(s *appsv1.StatefulSet) *workload {
	wanted := ptr.Deref(s.Spec.Replicas, 1)
	return &workload{Object: s, kind: "statefulset", wanted: wanted, ready: s.Status.ReadyReplicas, makers: []metav1.Object{s}, whole: fmt.Sprintf("%d of %d pods are ready", s.Status.ReadyReplicas, wanted)}
}

// daemonSetRules are those that only DaemonSets have.
var daemonSetRules = []rule[*appsv1.DaemonSet]{
	{"no-node-for-daemonset", func(_ *world, d *appsv1.DaemonSet) *finding {
		if d.Status.DesiredNumberScheduled > 0 || d.Status.ObservedGeneration == 0 {
			return nil
		}
		f := found("correct the nodeSelector, the affinity or the tolerations of the DaemonSet: kubectl get nodes --show-labels", "no node fits the DaemonSet, so it runs no pod%s", selectorText(d.Spec.Template.Spec.NodeSelector))
		f.mild = true // such as that of a device which no node has
		return f
	}},
}

func ofDaemonSet(d *appsv1.DaemonSet) *workload {
	wanted := d.Status.DesiredNumberScheduled
	return &workload{Object: d, kind: "daemonset", wanted: wanted, ready: d.Status.NumberReady, makers: []metav1.Object{d}, whole: fmt.Sprintf("%d of %d nodes have a ready pod", d.Status.NumberReady, wanted)}
}

func ofReplicaSet(r *appsv1.ReplicaSet) *workload {
	wanted := ptr.Deref(r.Spec.Replicas, 1)
	return &workload{Object: r, kind: "replicaset", wanted: wanted, ready: r.Status.ReadyReplicas, makers: []metav1.Object{r}, whole: fmt.Sprintf("%d of %d pods are ready", r.Status.ReadyReplicas, wanted)}
}

// jobRules are those that only Jobs have.
var jobRules = []rule[*batchv1.Job]{
	{"job-suspended", func(_ *world, j *batchv1.Job) *finding {
		if !ptr.Deref(j.Spec.Suspend, false) || jobCondition(j, batchv1.JobFailed) != nil || j.Status.CompletionTime != nil {
			return nil
		}
		f := found(fmt.Sprintf(`kubectl -n %s patch job %s --type=merge -p '{"spec":{"suspend":false}}'`, j.Namespace, j.Name), "the Job is suspended, so it runs no pod")
		f.mild = true
		return f
	}},
	{"job-deadline", func(_ *world, j *batchv1.Job) *finding {
		if c := jobCondition(j, batchv1.JobFailed); c == nil || c.Reason != batchv1.JobReasonDeadlineExceeded {
			return nil
		}
		var limit int64
		if j.Spec.ActiveDeadlineSeconds != nil {
			limit = *j.Spec.ActiveDeadlineSeconds
		}
		return found("raise activeDeadlineSeconds, and create the Job again", "the Job took longer than its activeDeadlineSeconds, %d, and was ended", limit)
	}},
	{"job-failed", func(w *world, j *batchv1.Job) *finding {
		c := jobCondition(j, batchv1.JobFailed)
		if c == nil {
			return nil
		}
		says := "the Job has failed: " + plain(c.Message)
		o := ofJob(j)
		for _, pod := range newestFirst(podsMadeBy(w, o)) {
			if f := failed(walk(w, &pod, podWay)); f != nil {
				return found("remove the cause ("+f.do+"), and create the Job again", "%s. Pod %s: %s", says, pod.Name, f.says)
			}
		}
		return found("remove the cause, and create the Job again", "%s", says)
	}},
}

func ofJob(j *batchv1.Job) *workload {
	wanted := int32(1)
	if j.Status.CompletionTime != nil || ptr.Deref(j.Spec.Suspend, false) {
		wanted = 0
	}
	o := &workload{Object: j, kind: "job", wanted: wanted, makers: []metav1.Object{j}, whole: "it is complete"}
	if ptr.Deref(j.Spec.Suspend, false) {
		o.whole = "it wants no pod"
	}
	if j.Status.Ready != nil && *j.Status.Ready > 0 {
		o.ready, o.whole = wanted, "its pod runs"
	}
	return o
}

func jobCondition(j *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// cronJobWay is what happens to a CronJob.
var cronJobWay = []stage[*batchv1.CronJob]{
	{name: "schedule", rules: []rule[*batchv1.CronJob]{
		{"cronjob-suspended", func(_ *world, c *batchv1.CronJob) *finding {
			if !ptr.Deref(c.Spec.Suspend, false) {
				return nil
			}
			f := found(fmt.Sprintf(`kubectl -n %s patch cronjob %s --type=merge -p '{"spec":{"suspend":false}}'`, c.Namespace, c.Name), "the CronJob is suspended, so it makes no Jobs")
			f.mild = true
			return f
		}},
		{"cronjob-missed", func(w *world, c *batchv1.CronJob) *finding {
			e := w.warning(c, "MissSchedule")
			if e == nil || c.Status.LastScheduleTime != nil && c.Status.LastScheduleTime.After(events.Seen(e)) {
				return nil
			}
			return found(fmt.Sprintf("raise startingDeadlineSeconds, or remove it: kubectl -n %s edit cronjob %s", c.Namespace, c.Name), "the CronJob was too late for a time of its schedule, and skipped it: %s", plain(afterLast(e.Message, "start a job: ")))
		}},
		{"cronjob-refused", func(w *world, c *batchv1.CronJob) *finding {
			e := w.warning(c, "FailedCreate")
			if e == nil || c.Status.LastScheduleTime != nil && c.Status.LastScheduleTime.After(events.Seen(e)) {
				return nil
			}
			return found("correct the jobTemplate, or what the message names", "the API server refuses the Jobs of the CronJob: %s", plain(strings.TrimPrefix(e.Message, "Error creating job: ")))
		}},
		{"cronjob-waits", func(_ *world, c *batchv1.CronJob) *finding {
			if c.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || len(c.Status.Active) == 0 {
				return nil
			}
			f := found(fmt.Sprintf("kedge why -n %s job/%s", c.Namespace, c.Status.Active[0].Name), "the Job %s still runs, and concurrencyPolicy: Forbid keeps the next one waiting", c.Status.Active[0].Name)
			f.mild = true
			return f
		}},
	}, passed: func(w *world, c *batchv1.CronJob) string {
		if c.Status.LastScheduleTime == nil {
			return "no time of its schedule has come since it was made"
		}
		return "it has made a Job " + since(w, c.Status.LastScheduleTime.Time) + " ago"
	}},
	{name: "newest Job", rules: []rule[*batchv1.CronJob]{
		{"cronjob-job", func(w *world, c *batchv1.CronJob) *finding {
			jobs, _ := list(w, w.Kubernetes.BatchV1().Jobs(c.Namespace), "Jobs", c.Namespace)
			if jobs == nil {
				return nil
			}
			own := slices.DeleteFunc(slices.Clone(jobs.Items), func(j batchv1.Job) bool { return !metav1.IsControlledBy(&j, c) })
			if len(own) == 0 {
				return nil
			}
			newest := slices.MaxFunc(own, func(a, b batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
			f := failed(jobSteps(w, &newest))
			if f != nil {
				f.says = fmt.Sprintf("Job %s: %s", newest.Name, f.says)
			}
			return f
		}},
	}, passed: func(*world, *batchv1.CronJob) string { return "it has not failed" }},
}

// The ways of workloads that have rules of their own.
func deploymentSteps(w *world, d *appsv1.Deployment) []Step {
	return workloadSteps(w, d, deploymentRules, func() *workload { return ofDeployment(w, d) })
}

func daemonSetSteps(w *world, d *appsv1.DaemonSet) []Step {
	return workloadSteps(w, d, daemonSetRules, func() *workload { return ofDaemonSet(d) })
}

func jobSteps(w *world, j *batchv1.Job) []Step {
	return workloadSteps(w, j, jobRules, func() *workload { return ofJob(j) })
}

// workloadSteps tries the rules of a kind first.
func workloadSteps[T any](w *world, object T, rules []rule[T], as func() *workload) []Step {
	steps := walk(w, object, []stage[T]{{name: "state", rules: rules, passed: func(*world, T) string { return "nothing holds it" }}})
	if failed(steps) != nil {
		return steps
	}
	return append(steps, walk(w, as(), workloadWay)...)
}

// selectorText returns the words about a selector.
func selectorText(selector map[string]string) string {
	if len(selector) == 0 {
		return ""
	}
	return ": it wants nodes with " + labels.FormatLabels(selector)
}
