package machines

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// pluginObject is the DaemonSet of a device plugin. SELinux lets only an unconfined container connect to the kubelet's socket.
const pluginObject = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: plugin}
spec:
  selector: {matchLabels: {app: plugin}}
  template:
    metadata: {labels: {app: plugin}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {seLinuxOptions: {type: spc_t}}
      containers:
      - name: main
        image: %s
        volumeMounts: [{name: sockets, mountPath: /var/lib/kubelet/device-plugins}]
      volumes: [{name: sockets, hostPath: {path: /var/lib/kubelet/device-plugins}}]
`

// pluggedDevices gives a pod a device of a device plugin, before and after a restart of kedge.
func pluggedDevices(t *testing.T, l *life) {
	began := l.sh(t, "date +%s")
	l.apply(t, fmt.Sprintf(pluginObject, image.PluginName))
	defer func() {
		l.kubectl(t, "delete daemonset plugin")
		l.untilKubectl(t, "get node machine -o jsonpath='{.status.allocatable.kedge\\.test/null}' | grep -x 0")
		l.noErrors(t, "--since=@"+began)
	}()
	for _, when := range []string{"at-first", "after-a-restart"} {
		t.Run(when, func(t *testing.T) {
			if when == "after-a-restart" {
				l.restartKedge(t)
				l.ready(t)
			}
			l.untilKubectl(t, `get node machine -o jsonpath='{.status.allocatable.kedge\.test/null}' | grep -x 2`)
			output := once{name: "with-device", container: "resources: {limits: {kedge.test/null: 1}}",
				script: "echo $KEDGE_DEVICES; echo nothing >/dev/kedge-null && echo written"}.output(t, l)
			if first, rest, _ := strings.Cut(output, "\n"); first != "first" && first != "second" || rest != "written" {
				t.Errorf("a pod with a device says:\n%s", output)
			}
		})
	}
}

// hugePages gives a pod huge pages. The kubelet counts those of the machine when it starts.
func hugePages(t *testing.T, l *life) {
	l.sh(t, "echo 8 >/proc/sys/vm/nr_hugepages")
	l.restartKedge(t)
	l.ready(t)
	defer func() {
		l.sh(t, "echo 0 >/proc/sys/vm/nr_hugepages")
		l.restartKedge(t)
		l.ready(t)
	}()
	l.untilKubectl(t, "get node machine -o jsonpath='{.status.allocatable.hugepages-2Mi}' | grep -x 16Mi")
	huge := once{name: "huge", container: "resources: {limits: {hugepages-2Mi: 4Mi, memory: 64Mi, cpu: 100m}}", script: "sleep 1000000"}
	huge.start(t, l)
	defer huge.remove(t, l)
	// containerd leaves the limit of the container open. The kubelet limits the pod, which is of the class Guaranteed.
	l.eventually(t, "cat /sys/fs/cgroup/kubepods.slice/kubepods-pod*.slice/hugetlb.2MB.max | grep -x 4194304")
}
