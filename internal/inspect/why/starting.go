package why

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// starting says why a container does not start, or does not keep running.
var starting = []rule[*corev1.Pod]{
	{"environment-object-missing", waitingFor(func(w *world, p *corev1.Pod, c container, _ string) *finding {
		for _, from := range c.EnvFrom {
			if s := from.ConfigMapRef; s != nil && !ptr.Deref(s.Optional, false) {
				if f := missingKey(w, p.Namespace, "ConfigMap", s.Name, "", "the "+c.String()); f != nil {
					return f
				}
			}
			if s := from.SecretRef; s != nil && !ptr.Deref(s.Optional, false) {
				if f := missingKey(w, p.Namespace, "Secret", s.Name, "", "the "+c.String()); f != nil {
					return f
				}
			}
		}
		for _, variable := range c.Env {
			from := variable.ValueFrom
			if from == nil {
				continue
			}
			if s := from.ConfigMapKeyRef; s != nil && !ptr.Deref(s.Optional, false) {
				if f := missingKey(w, p.Namespace, "ConfigMap", s.Name, s.Key, "the variable "+variable.Name); f != nil {
					return f
				}
			}
			if s := from.SecretKeyRef; s != nil && !ptr.Deref(s.Optional, false) {
				if f := missingKey(w, p.Namespace, "Secret", s.Name, s.Key, "the variable "+variable.Name); f != nil {
					return f
				}
			}
		}
		return nil
	})},
	{"runs-as-root", waitingFor(func(_ *world, _ *corev1.Pod, c container, message string) *finding {
		switch {
		case strings.Contains(message, "runAsUser breaks non-root policy"):
			return found("set runAsUser in the securityContext to a number other than 0, or remove runAsNonRoot", "the %s has runAsUser: 0, which is root, and its runAsNonRoot forbids that", c)
		case strings.Contains(message, "image will run as root"):
			return found("set runAsUser in the securityContext to a number other than 0, or remove runAsNonRoot", "the image %s runs as root, which the runAsNonRoot of the %s forbids", c.Image, c)
		case strings.Contains(message, "non-numeric user"):
			return found("set runAsUser in the securityContext to a number other than 0", "the image %s has a user without a number, so the node cannot tell whether that is root, which runAsNonRoot forbids", c.Image)
		}
		return nil
	})},
	{"program-missing", withFault(func(w *world, p *corev1.Pod, c container, fault string) *finding {
		if m := noProgram.FindStringSubmatch(fault); m != nil {
			return found("correct command or args of the container, or the image", "the image %s has no program %s, with which the %s begins", c.Image, m[1], c)
		}
		if m := noInterpreter.FindStringSubmatch(w.runcLog(p, c)); m != nil {
			return found("install that interpreter in the image, or correct the first line of the file. The line must not end with \\r", "the image %s does not have the interpreter that the first line of %s names, with which the %s begins", c.Image, m[1], c)
		}
		return nil
	})},
	{"program-forbidden", withFault(func(_ *world, _ *corev1.Pod, c container, fault string) *finding {
		if m := regexp.MustCompile(`exec: "([^"]+)": permission denied`).FindStringSubmatch(fault); m != nil {
			return found("make the file executable in the image (chmod +x), or set command: [sh, "+m[1]+"]", "the file %s, with which the %s begins, is not executable", m[1], c)
		}
		return nil
	})},
	{"program-architecture", withFault(func(w *world, p *corev1.Pod, c container, fault string) *finding {
		if !strings.Contains(fault, "exec format error") && !strings.Contains(w.runcLog(p, c), "exec format error") {
			return nil
		}
		return found("use an image for the architecture of the node. If the program is a script, give it the first line #!/bin/sh", "node %[2]s%[3]s cannot run the program of the %[1]s: it is for another architecture, or it is a script without #! in the first line", c, p.Spec.NodeName, architecture(w, p.Spec.NodeName))
	})},
	{"out-of-memory", crashed(func(_ *world, _ *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding {
		if end.Reason != "OOMKilled" {
			return nil
		}
		limit, ok := c.Resources.Limits[corev1.ResourceMemory]
		if !ok {
			return found("give the node more memory, or give its pods resources.limits.memory", "the %s was killed%s, because its node or its pod ran out of memory. The container has no limit of its own", c, times(c))
		}
		return found("raise resources.limits.memory of the container, or let the program use less memory", "the %s needed more memory than its limit of %s and was killed%s", c, limit.String(), times(c))
	})},
	{"liveness", crashed(func(w *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding {
		e := probeFailure(w, p, c, "Liveness", "Startup")
		if c.LivenessProbe == nil && c.StartupProbe == nil || e == nil {
			return nil
		}
		// A program that ends by itself has other exit codes, unless the kubelet says that it has ended it.
		if signal := unix.Signal(end.ExitCode - 128); signal != unix.SIGKILL && signal != unix.SIGTERM && !killedByProbe(w, p, c, end) {
			return nil
		}
		kind, _, _ := strings.Cut(e.Message, " probe")
		return found(fmt.Sprintf("correct the %sProbe, or raise its initialDelaySeconds or failureThreshold", strings.ToLower(kind)), "the node restarts the %s because its %s probe fails: %s%s", c, strings.ToLower(kind), plain(probeAnswer(e)), probePort(c, strings.ToLower(kind)))
	})},
	{"killed", crashed(func(w *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding {
		if end.ExitCode <= 128 || end.ExitCode > 128+64 || end.Reason == "StartError" {
			return nil
		}
		signal := unix.SignalName(unix.Signal(end.ExitCode - 128))
		if signal == "" {
			return nil
		}
		return found(logsCommand(p, c), "the %s was ended by the signal %s%s%s", c, signal, times(c), w.lastWords(p, c))
	})},
	{"ends-at-once", crashed(func(_ *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding {
		if end.ExitCode != 0 || c.init && !c.sidecar() {
			return nil
		}
		return found("let the program run in the foreground. For work that ends, use a Job", "the program of the %s ends by itself, without an error%s. Kubernetes expects it to keep running", c, times(c))
	})},
	{"fails", crashed(func(w *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding {
		if end.Reason == "StartError" || end.Reason == "ContainerCannotRun" {
			return found("correct what the message names in the spec of the container or in its image", "the %s cannot start: %s", c, plain(afterLast(end.Message, "unable to start container process: ")))
		}
		return found(logsCommand(p, c), "the program of the %s ends with exit code %d%s%s", c, end.ExitCode, times(c), w.lastWords(p, c))
	})},
	{"not-created", waitingFor(func(_ *world, p *corev1.Pod, c container, message string) *finding {
		return found(fmt.Sprintf("kubectl -n %s describe pod %s shows more", p.Namespace, p.Name), "node %s cannot create the %s: %s", p.Spec.NodeName, c, plain(message))
	})},
}

var noProgram = regexp.MustCompile(`exec: "([^"]+)": (?:executable file not found in \$PATH|stat [^:]+: no such file or directory|no such file or directory)`)

var noInterpreter = regexp.MustCompile(`exec (\S+): no such file or directory$`)

// waitingFor applies a rule to the first container that the node cannot make. message is the node's.
func waitingFor(find func(w *world, p *corev1.Pod, c container, message string) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		for _, c := range containers(p) {
			if c.status == nil || c.status.State.Waiting == nil {
				continue
			}
			switch waiting := c.status.State.Waiting; waiting.Reason {
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
				return find(w, p, c, waiting.Message)
			}
		}
		return nil
	}
}

// withFault applies a rule to the first container that could not start. fault is the error of the runtime.
func withFault(find func(w *world, p *corev1.Pod, c container, fault string) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		for _, c := range containers(p) {
			if c.status == nil {
				continue
			}
			if waiting := c.status.State.Waiting; waiting != nil && waiting.Message != "" && waiting.Reason != "CrashLoopBackOff" {
				if f := find(w, p, c, waiting.Message); f != nil {
					return f
				}
			}
			if end := ended(w, p, c); end != nil {
				if f := find(w, p, c, end.Message); f != nil {
					return f
				}
			}
		}
		return nil
	}
}

// crashed applies a rule to the first container that has ended and should run, or that has failed.
func crashed(find func(w *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		for _, c := range containers(p) {
			if end := ended(w, p, c); end != nil && p.Status.Phase != corev1.PodSucceeded {
				return find(w, p, c, end)
			}
		}
		return nil
	}
}

// steady is how long a container has run when the kubelet forgets its earlier ends, and restarts it at once if it ends again.
const steady = 10 * time.Minute

// ended returns how a container ended that should run, or that failed. It returns nil for one that runs, and is ready or has run for long.
func ended(w *world, p *corev1.Pod, c container) *corev1.ContainerStateTerminated {
	if c.status == nil {
		return nil
	}
	switch s := c.status; {
	case s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 && (c.init && !c.sidecar() || p.Spec.RestartPolicy != corev1.RestartPolicyAlways):
		return nil
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Running != nil && (s.Ready || w.Now().Sub(s.State.Running.StartedAt.Time) > steady):
		return nil
	}
	end := c.status.LastTerminationState.Terminated
	if end != nil && (end.Reason == "Unknown" || end.Reason == "ContainerStatusUnknown") {
		return nil // the node was restarted
	}
	return end
}

// killedByProbe tells whether the kubelet ended the last run of a container because of a probe.
func killedByProbe(w *world, p *corev1.Pod, c container, end *corev1.ContainerStateTerminated) bool {
	return slices.ContainsFunc(w.events(p.Namespace, p.UID), func(e corev1.Event) bool {
		return e.Reason == "Killing" && isAbout(&e, c) && (strings.Contains(e.Message, "failed liveness probe") || strings.Contains(e.Message, "failed startup probe")) &&
			!events.Seen(&e).Before(end.StartedAt.Time)
	})
}

// logsCommand returns the command that shows the log of a container that has ended.
func logsCommand(p *corev1.Pod, c container) string {
	command := fmt.Sprintf("kubectl -n %s logs %s -c %s", p.Namespace, p.Name, c.Name)
	if c.status.State.Terminated == nil {
		command += " --previous"
	}
	return command
}

// times tells how often a container was restarted.
func times(c container) string {
	if n := c.status.RestartCount; n > 1 {
		return fmt.Sprintf(" (%d restarts)", n)
	}
	return ""
}

// runcLog returns the end of the log of a container that runc could not start: it writes there why the kernel refused the program.
func (w *world) runcLog(p *corev1.Pod, c container) string {
	if end := ended(w, p, c); end == nil || end.ExitCode != 255 {
		return ""
	}
	return w.logEnd(p, c)
}

// lastWords returns the words about the end of the log of a container that has ended.
func (w *world) lastWords(p *corev1.Pod, c container) string {
	if text := w.logEnd(p, c); text != "" {
		return ". Its log ends with: " + text
	}
	return ""
}

// A node may be slow to answer for a log, or a namespace may have very many containers that end.
const (
	logPatience = 3 * time.Second
	mostLogs    = 20
)

// logEnd returns the end of the log of a container that has ended, unless many logs were read already.
func (w *world) logEnd(p *corev1.Pod, c container) string {
	lines := int64(3)
	text, _ := read(w, fmt.Sprintf("logs|%s/%s/%s", p.Namespace, p.Name, c.Name), func() (string, error) {
		if w.logs++; w.logs > mostLogs {
			return "", nil
		}
		ctx, cancel := context.WithTimeout(w.ctx, logPatience)
		defer cancel()
		previous := c.status.State.Terminated == nil
		stream, err := w.Kubernetes.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: c.Name, Previous: previous, TailLines: &lines}).Stream(ctx)
		if err != nil {
			return "", nil //nolint:nilerr // A log that is gone takes nothing away from the finding.
		}
		defer stream.Close()
		text, err := io.ReadAll(io.LimitReader(stream, 64<<10))
		if err != nil {
			return "", nil //nolint:nilerr // as above
		}
		return string(text), nil
	})
	return plain(text)
}
