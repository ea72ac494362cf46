package console

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// kinds are the kinds with pages. Their names are those in the paths of pages. Secrets are not among them: a page is easily
// seen by others.
var kinds = map[string]schema.GroupVersionResource{
	"pod":                   {Version: "v1", Resource: "pods"},
	"service":               {Version: "v1", Resource: "services"},
	"persistentvolumeclaim": {Version: "v1", Resource: "persistentvolumeclaims"},
	"deployment":            {Group: "apps", Version: "v1", Resource: "deployments"},
	"statefulset":           {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"daemonset":             {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"replicaset":            {Group: "apps", Version: "v1", Resource: "replicasets"},
	"job":                   {Group: "batch", Version: "v1", Resource: "jobs"},
	"cronjob":               {Group: "batch", Version: "v1", Resource: "cronjobs"},
	"ingress":               {Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	"gateway":               {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"},
	"httproute":             {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"},
}

// named is the title of a page about an object.
func named(v *visit) string { return v.value("kind") + "/" + v.value("name") }

// object shows why an object works or does not, its Events, and, of a pod, its containers.
var object = view{"object", named, func(v *visit) any {
	kind, namespace, name := v.value("kind"), v.value("namespace"), v.value("name")
	asked, err := why.Parse(namespace, kind, name)
	if _, known := kinds[kind]; !known || err != nil {
		return nil
	}
	report, err := why.Explain(v.ctx, v.Clients, asked)
	switch {
	case why.IsMissing(err):
		return nil
	case err != nil:
		v.fault = err
		return nil
	}
	shown := struct {
		Kind, Here string
		Report     *why.Report
		Now        time.Time
		Pod        *podRow
		Containers []containerRow
		Events     []eventRow
		Actions    []action
	}{Kind: kind, Here: path("namespaces", namespace, kind, name), Report: report, Now: v.now, Actions: actionsOf(kind)}
	for _, e := range v.events(namespace) {
		if strings.EqualFold(e.Object.Kind, kind) && e.Object.Name == name {
			shown.Events = append(shown.Events, e)
		}
	}
	if kind == "pod" {
		pod, err := v.Clients.Kubernetes.CoreV1().Pods(namespace).Get(v.ctx, name, metav1.GetOptions{})
		if v.note("pods", err) {
			row := newPodRow(pod)
			shown.Pod, shown.Containers = &row, containers(pod)
		}
	}
	return shown
}}

// containerRow is a container of a pod.
type containerRow struct {
	Name, Image, State string
	Ready              bool
	Restarts           int32
}

// running is the state of a container that runs.
const running = "running"

// containers returns the containers of a pod, the first to start first.
func containers(pod *corev1.Pod) (rows []containerRow) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, s := range statuses {
			row := containerRow{Name: s.Name, Image: s.Image, Ready: s.Ready, Restarts: s.RestartCount, State: "unknown"}
			switch {
			case s.State.Running != nil:
				row.State = running
			case s.State.Waiting != nil:
				row.State = "waits: " + s.State.Waiting.Reason
			case s.State.Terminated != nil:
				row.State = fmt.Sprintf("ended with status %d: %s", s.State.Terminated.ExitCode, s.State.Terminated.Reason)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// manifest shows an object as YAML, without what only controllers read.
var manifest = view{"manifest", named, func(v *visit) any {
	resource, known := kinds[v.value("kind")]
	if !known {
		return nil
	}
	read, err := v.Clients.Dynamic.Resource(resource).Namespace(v.value("namespace")).Get(v.ctx, v.value("name"), metav1.GetOptions{})
	if !v.note(resource.Resource, err) {
		return nil
	}
	unstructured.RemoveNestedField(read.Object, "metadata", "managedFields")
	text, err := yaml.Marshal(read.Object)
	if err != nil {
		v.fault = fmt.Errorf("write YAML: %w", err)
		return nil
	}
	return struct{ Namespace, Kind, Name, Text string }{v.value("namespace"), v.value("kind"), v.value("name"), string(text)}
}}

// lastLines is how many lines of a log a page begins with.
const lastLines = 500

// podLog shows the log of a container.
var podLog = view{"log", func(v *visit) string { return "Log of pod/" + v.value("name") }, func(v *visit) any {
	namespace, name := v.value("namespace"), v.value("name")
	pod, err := v.Clients.Kubernetes.CoreV1().Pods(namespace).Get(v.ctx, name, metav1.GetOptions{})
	if !v.note("pods", err) {
		return nil
	}
	shown := struct {
		Namespace, Name, Container string
		Previous                   bool
		Containers                 []containerRow
		Lines, Fault               string
	}{namespace, name, v.request.FormValue("container"), v.request.FormValue("previous") != "", containers(pod), "", ""}
	if shown.Container == "" && len(pod.Spec.Containers) > 0 {
		shown.Container = pod.Spec.Containers[0].Name
	}
	options := logOptions(v.request)
	options.Container = shown.Container
	text, err := v.Clients.Kubernetes.CoreV1().Pods(namespace).GetLogs(name, options).DoRaw(v.ctx)
	if err != nil {
		shown.Fault = err.Error() // such as: the container has not started
	}
	shown.Lines = string(text)
	return shown
}}

// logOptions are what a page asks of a log.
func logOptions(r *http.Request) *corev1.PodLogOptions {
	lines, bytes := int64(lastLines), int64(1<<20)
	return &corev1.PodLogOptions{Container: r.FormValue("container"), Previous: r.FormValue("previous") != "", TailLines: &lines, LimitBytes: &bytes}
}

// follow sends the last lines of a log again, so that none is missing after those of the page, and then lines as they come.
func (c *Console) follow(out http.ResponseWriter, r *http.Request) {
	options := logOptions(r)
	options.Follow, options.LimitBytes = true, nil
	log, err := c.Clients.Kubernetes.CoreV1().Pods(r.PathValue("namespace")).GetLogs(r.PathValue("name"), options).Stream(r.Context())
	events := newEventStream(out)
	if err != nil {
		events.send("end", printable(err.Error()))
		return
	}
	defer log.Close()
	events.send("begin", "")
	for lines := bufio.NewReaderSize(log, 64<<10); ; {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 && !events.send("line", printable(strings.TrimSuffix(string(line), "\n"))) {
			return
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // a longer line comes in pieces
			events.send("end", "The log ends here.")
			return
		}
	}
}

// number reads a number of a form.
func number(r *http.Request, name string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(r.FormValue(name)), 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number: write one such as 3", r.FormValue(name))
	}
	return n, nil
}
