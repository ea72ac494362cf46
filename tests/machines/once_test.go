package machines

import (
	"fmt"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// once is a pod that runs one script and ends.
type once struct {
	name string
	// spec and container are what the pod and its container specify beside the image and the script, as
	// lines of YAML in the flow style.
	spec, container string
	script          string
}

const onceObject = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  %s
  containers:
  - name: main
    image: %s
    command: [sh, -c, %q]
    %s
`

// start makes the pod.
func (p once) start(t *testing.T, l *life) {
	t.Helper()
	l.apply(t, fmt.Sprintf(onceObject, p.name, p.spec, image.BusyboxName, p.script, p.container))
}

// ended waits until the pod has succeeded or failed, and returns which.
func (p once) ended(t *testing.T, l *life) string {
	t.Helper()
	return l.untilKubectl(t, fmt.Sprintf("get pod %s -o jsonpath='{.status.phase}' | grep -x -e Succeeded -e Failed", p.name))
}

// get returns a value of the pod's status, by its JSONPath below status.
func (p once) get(t *testing.T, l *life, path string) string {
	t.Helper()
	return l.kubectl(t, fmt.Sprintf("get pod %s -o jsonpath='{.status%s}'", p.name, path))
}

// remove deletes the pod.
func (p once) remove(t *testing.T, l *life) {
	t.Helper()
	l.kubectl(t, "delete pod --now "+p.name)
}

// output runs the pod, which must succeed, and returns what it wrote.
func (p once) output(t *testing.T, l *life) string {
	t.Helper()
	p.start(t, l)
	return p.result(t, l)
}

// result waits until the pod has ended, which must succeed, removes it, and returns what it wrote.
func (p once) result(t *testing.T, l *life) string {
	t.Helper()
	defer p.remove(t, l)
	phase := p.ended(t, l)
	// A connection to the kubelet ends if its certificate was just renewed.
	output := l.untilKubectl(t, "logs "+p.name)
	if phase != "Succeeded" {
		t.Errorf("pod %s is %s: %s\n%s", p.name, phase, p.get(t, l, ""), output)
	}
	return output
}
