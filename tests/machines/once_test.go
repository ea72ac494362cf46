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
	const phase = "kedge kubectl get pod %s -o jsonpath='{.status.phase}'"
	l.eventually(t, fmt.Sprintf(phase+" | grep -x -e Succeeded -e Failed", p.name))
	return l.sh(t, fmt.Sprintf(phase, p.name))
}

// get returns a value of the pod's status, by its JSONPath below status.
func (p once) get(t *testing.T, l *life, path string) string {
	t.Helper()
	return l.sh(t, fmt.Sprintf("kedge kubectl get pod %s -o jsonpath='{.status%s}'", p.name, path))
}

// remove deletes the pod.
func (p once) remove(t *testing.T, l *life) {
	t.Helper()
	l.sh(t, "kedge kubectl delete pod --now "+p.name)
}

// output runs the pod, which must succeed, and returns what it wrote.
func (p once) output(t *testing.T, l *life) string {
	t.Helper()
	p.start(t, l)
	defer p.remove(t, l)
	phase := p.ended(t, l)
	output := l.sh(t, "kedge kubectl logs "+p.name)
	if phase != "Succeeded" {
		t.Errorf("pod %s is %s: %s\n%s", p.name, phase, p.get(t, l, ""), output)
	}
	return output
}
