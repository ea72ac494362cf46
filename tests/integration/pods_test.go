package integration

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestVolumes gives a pod the four kinds of volumes that show objects of the API, and changes one
// of them while the pod runs.
func TestVolumes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: credentials}
stringData: {password: swordfish}
---
apiVersion: v1
kind: Pod
metadata: {name: reader, labels: {shape: round}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - name: settings
    configMap: {name: settings}
  - name: credentials
    secret: {secretName: credentials, defaultMode: 0400}
  - name: self
    downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
  - name: all
    projected:
      sources:
      - configMap: {name: settings}
      - secret: {name: credentials}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - serviceAccountToken: {path: token, audience: nobody, expirationSeconds: 3600}
  containers:
  - name: main
    image: ` + busybox + `
    command: [sleep, "3600"]
    env:
    - name: COLOUR
      valueFrom: {configMapKeyRef: {name: settings, key: colour}}
    - name: NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: credentials, mountPath: /credentials}
    - {name: self, mountPath: /self}
    - {name: all, mountPath: /all}
`)
	s.pod("reader")
	for command, want := range map[string]string{
		"echo $COLOUR $NODE":                    "blue " + s.server.Host.Name,
		"cat /settings/colour":                  "blue",
		"cat /credentials/password":             "swordfish",
		"stat -L -c %a /credentials/password":   "400",
		"cat /self/labels":                      `shape="round"`,
		"cat /all/colour /all/password":         "blueswordfish",
		"cat /all/name":                         "reader",
		"cut -c1-2 /all/token":                  "ey",
		"cat /var/run/secrets/*/*/namespace":    s.namespace,
		"mount | grep /credentials | cut -c1-5": "tmpfs",
	} {
		if output, err := s.in("reader", "sh", "-c", command); output != want {
			t.Errorf("%s printed %q, %v, want %q", command, output, err, want)
		}
	}
	s.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: red}
`)
	s.eventuallyIn("reader", "the changed ConfigMap in the pod", func(output string) bool { return output == "red" }, "cat", "/settings/colour")
}

// TestInitContainers checks that init containers run in order before the others, that a sidecar
// runs beside them, and that both containers of a pod share a network.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes: [{name: work, emptyDir: {medium: Memory}}]
  initContainers:
  - name: first
    image: ` + busybox + `
    command: [sh, -c, 'echo first >>/work/order']
    volumeMounts: &work [{name: work, mountPath: /work}]
  - name: sidecar
    image: ` + testserver + `
    args: [serve, "9090"]
    restartPolicy: Always
    startupProbe: {httpGet: {path: /, port: 9090}, periodSeconds: 1, failureThreshold: 60}
  - name: second
    image: ` + busybox + `
    command: [sh, -c, 'echo second >>/work/order']
    volumeMounts: *work
  containers:
  - name: main
    image: ` + busybox + `
    command: [sh, -c, 'cat /work/order; wget -q -O - http://127.0.0.1:9090/ | head -n 1']
    volumeMounts: *work
`)
	s.podUntil("ordered", "done", succeeded)
	logs := s.kubectl("logs", "ordered", "-c", "main")
	if logs != "first\nsecond\nhostname=ordered\n" {
		t.Errorf("the order is %q", logs)
	}
}

// TestProbesRestart makes a liveness probe fail, which must restart the container, and a readiness
// probe, which must take the pod out of its Service.
func TestProbesRestart(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: probed}
spec:
  selector: {app: probed}
  ports: [{port: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: probed, labels: {app: probed}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: state, emptyDir: {}}]
  containers:
  - name: main
    image: ` + busybox + `
    command: [sh, -c, 'touch /state/alive /state/ready; trap "exit 0" TERM; sleep 3600 & wait']
    volumeMounts: [{name: state, mountPath: /state}]
    livenessProbe: {exec: {command: [test, -e, /state/alive]}, periodSeconds: 1, failureThreshold: 2}
    readinessProbe: {exec: {command: [test, -e, /state/ready]}, periodSeconds: 1, failureThreshold: 2}
`)
	s.pod("probed")
	if _, err := s.in("probed", "rm", "/state/ready"); err != nil {
		t.Fatal(err)
	}
	s.podUntil("probed", "not ready", func(pod *corev1.Pod) bool { return !isReady(pod) })
	s.eventually("the pod to be out of its Service", func() error {
		slices, err := s.client.DiscoveryV1().EndpointSlices(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=probed"})
		if err != nil {
			return err
		}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
					return fmt.Errorf("%v is in", endpoint.Addresses)
				}
			}
		}
		return nil
	})
	if _, err := s.in("probed", "rm", "/state/alive"); err != nil {
		t.Fatal(err)
	}
	pod := s.podUntil("probed", "restarted and ready again", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil {
		t.Error("the end of the first container is not in the pod's status")
	}
	s.eventually("an event that says why", func() error {
		if events := s.kubectl("get", "events"); !strings.Contains(events, "Liveness probe failed") {
			return fmt.Errorf("events are %s", events)
		}
		return nil
	})
}

// TestResourceLimits checks that a container that uses too much memory is killed by its own cgroup,
// and that its CPU and process limits are set.
func TestResourceLimits(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: ` + busybox + `
    command: [sh, -c, 'x=0123456789abcdef; while true; do x=$x$x; done']
    resources: {limits: {memory: 32Mi, cpu: 500m}}
`)
	pod := s.podUntil("greedy", "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	if reason := pod.Status.ContainerStatuses[0].State.Terminated.Reason; reason != "OOMKilled" {
		t.Errorf("the container ended by %s, want OOMKilled", reason)
	}
}

// TestEachContainerIsOOMKilled has many containers that grow beyond their limit at about the same time: by their first
// process, by a child whose status they end with, and by a child after which they end with a status of their own.
func TestEachContainerIsOOMKilled(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	const grow = `x=0123456789abcdef; while true; do x=$x$x; done`
	shapes := []string{grow, fmt.Sprintf("sh -c '%s'; exit $?", grow), fmt.Sprintf("sh -c '%s'; exit 1", grow)}
	const rounds = 8
	var pods strings.Builder
	for round := range rounds {
		fmt.Fprintf(&pods, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: greedy-%d}\nspec:\n  restartPolicy: Never\n  containers:\n", round)
		for i, command := range shapes {
			fmt.Fprintf(&pods, "  - name: shape-%d\n    image: %s\n    command: [sh, -c, %q]\n    resources: {limits: {memory: 16Mi}, requests: {cpu: 1m}}\n", i, busybox, command)
		}
	}
	s.apply(pods.String())
	for round := range rounds {
		pod := s.podUntil(fmt.Sprintf("greedy-%d", round), "failed", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
		for _, status := range pod.Status.ContainerStatuses {
			if ended := status.State.Terminated; ended == nil || ended.Reason != "OOMKilled" {
				t.Errorf("%s of %s ended by %+v, want OOMKilled", status.Name, pod.Name, ended)
			}
		}
	}
}
