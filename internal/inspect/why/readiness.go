package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// readiness says why a pod that runs gets no requests.
var readiness = []rule[*corev1.Pod]{
	{"startup-probe", unready(func(w *world, p *corev1.Pod, c container) *finding {
		if e := probeFailure(w, p, c, "Startup"); e != nil && c.StartupProbe != nil && !events.Seen(e).Before(c.status.State.Running.StartedAt.Time) {
			return found("correct the startupProbe, or raise its failureThreshold", "the startup probe of the %s fails: %s%s", c, plain(probeAnswer(e)), probePort(c, "startup"))
		}
		return nil
	})},
	{"readiness-probe", unready(func(w *world, p *corev1.Pod, c container) *finding {
		if e := probeFailure(w, p, c, "Readiness"); e != nil && c.ReadinessProbe != nil && !events.Seen(e).Before(c.status.State.Running.StartedAt.Time) {
			return found("correct the readinessProbe, or see why the program does not answer: "+fmt.Sprintf("kubectl -n %s logs %s -c %s", p.Namespace, p.Name, c.Name), "the readiness probe of the %s fails: %s%s", c, plain(probeAnswer(e)), probePort(c, "readiness"))
		}
		return nil
	})},
	{"readiness-gate", func(_ *world, p *corev1.Pod) *finding {
		for _, gate := range p.Spec.ReadinessGates {
			if c := condition(p, gate.ConditionType); !finished(p) && (c == nil || c.Status != corev1.ConditionTrue) {
				return found("see whether the controller that sets this condition runs. If nothing sets it, remove it from spec.readinessGates", "the readiness gate %s holds the pod: no controller has set that condition to True", gate.ConditionType)
			}
		}
		return nil
	}},
}

// unready applies a rule to the first container that runs and is not ready.
func unready(find func(w *world, p *corev1.Pod, c container) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		for _, c := range containers(p) {
			if c.status != nil && c.status.State.Running != nil && !c.status.Ready {
				return find(w, p, c)
			}
		}
		return nil
	}
}

// probeFailure returns the newest Event about a failed probe of a container.
func probeFailure(w *world, p *corev1.Pod, c container, kinds ...string) *corev1.Event {
	for _, e := range w.events(p.Namespace, p.UID) {
		if e.Reason != "Unhealthy" || !isAbout(&e, c) {
			continue
		}
		if slices.ContainsFunc(kinds, func(kind string) bool { return strings.HasPrefix(e.Message, kind+" probe ") }) {
			return &e
		}
	}
	return nil
}

// isAbout tells whether an Event of a pod is about a container.
func isAbout(e *corev1.Event, c container) bool {
	return strings.Contains(e.InvolvedObject.FieldPath, "{"+c.Name+"}")
}

// probeAnswer returns what a failed probe met.
func probeAnswer(e *corev1.Event) string {
	_, answer, _ := strings.Cut(e.Message, ": ")
	return answer
}

// probePort says that a probe asks at a port that the container does not name.
func probePort(c container, kind string) string {
	probe := map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe}[kind]
	if probe == nil {
		return ""
	}
	var port int32
	switch {
	case probe.HTTPGet != nil:
		port = probe.HTTPGet.Port.IntVal
	case probe.TCPSocket != nil:
		port = probe.TCPSocket.Port.IntVal
	}
	var named []string
	for _, p := range c.Ports {
		if p.ContainerPort == port {
			return ""
		}
		named = append(named, fmt.Sprint(p.ContainerPort))
	}
	if port == 0 || len(named) == 0 {
		return ""
	}
	return fmt.Sprintf(". The probe asks at port %d, and the container has the ports %s", port, strings.Join(named, ", "))
}
