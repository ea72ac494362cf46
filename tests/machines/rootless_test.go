package machines

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// ordinaryUser is the user who makes nodes without being root.
const ordinaryUser = "kim"

// ordinaryWeb is an app whose files have another owner than the root of its image, and whose pods are on both nodes.
const ordinaryWeb = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
      securityContext: {runAsUser: 1234, fsGroup: 2345}
      volumes: [{name: www, emptyDir: {}}]
      containers:
      - name: main
        image: kedge.test/busybox:1
        command: [sh, -c, "hostname >/www/index.html; exec httpd -f -p 8080 -h /www"]
        volumeMounts: [{name: www, mountPath: /www}]
        resources: {limits: {memory: 64Mi, cpu: "1"}}
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
`

// ordinaryCommand is what runs with the cluster: both nodes are there, a pod reaches the app by its name on both nodes, and
// this machine reaches it by the published port. The limit of a container is a file in the cgroup of the user.
const ordinaryCommand = `
set -e
kedge kubectl get nodes -o wide
test "$(kedge kubectl get nodes --no-headers | grep -cw Ready)" = 2
test "$(id -un)" = kim
pod=$(kedge kubectl get pods -o name | head -n 1)
kedge kubectl exec "$pod" -- sh -c 'for i in $(seq 20); do wget -qO- http://web; done' | sort -u | tee /tmp/answers
test "$(wc -l </tmp/answers)" = 2
curl -fsS --retry 30 --retry-all-errors --retry-delay 1 http://127.0.0.1:18080/
grep -rlx 67108864 /sys/fs/cgroup/user.slice --include=memory.max
`

// runsRootless makes a cluster of two nodes as an ordinary user, and wants nothing of it to be left.
func runsRootless(t *testing.T, l *life) {
	const folder = "/opt/rootless/"
	l.write(t, folder+"kedge", 0o755, l.kedge(t))
	l.write(t, folder+"web.yaml", 0o644, []byte(ordinaryWeb))
	l.write(t, folder+"command", 0o755, []byte("#!/bin/sh\n"+ordinaryCommand))
	archive, err := image.Maker{Repository: l.tree, Architecture: l.goArchitecture()}.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, folder+"busybox.tar", 0o644, data)
	defer l.sh(t, fmt.Sprintf("loginctl disable-linger %[1]s; loginctl terminate-user %[1]s; sleep 1; userdel -r %[1]s; rm -rf %[2]s /tmp/answers; true", ordinaryUser, filepath.Clean(folder)))
	l.sh(t, "useradd --create-home --shell /bin/bash "+ordinaryUser)
	run := func(flags string) (string, error) {
		return l.try(fmt.Sprintf("cd /home/%[1]s && runuser -u %[1]s -- env -i HOME=/home/%[1]s PATH=%[2]s:$PATH kedge run %[3]s 2>&1", ordinaryUser, folder, flags))
	}
	output, err := run("-- true")
	if err == nil || !strings.Contains(output, "loginctl enable-linger") {
		t.Errorf("no systemd runs for the user, and kedge does not say so: %v\n%s", err, output)
	}
	l.sh(t, "loginctl enable-linger "+ordinaryUser+" && until runuser -u "+ordinaryUser+" -- env XDG_RUNTIME_DIR=/run/user/$(id -u "+ordinaryUser+") systemctl --user is-system-running --wait; do sleep 1; done")
	before := l.sh(t, ordinaryTraces)
	output, err = run("--nodes 2 --timeout 20m --image " + folder + "busybox.tar --manifest " + folder + "web.yaml --wait --publish 18080:30080 --logs /tmp/rootless-logs -- " + folder + "command")
	if err != nil {
		t.Errorf("%v\n%s\n%s", err, output, l.sh(t, "tail -n 40 /tmp/rootless-logs/kedge/*.log 2>/dev/null || true"))
	}
	t.Log(output)
	l.sh(t, "rm -rf /tmp/rootless-logs")
	if after := l.sh(t, ordinaryTraces); after != before {
		t.Errorf("the cluster has left something behind. Before:\n%s\nAfter:\n%s", before, after)
	}
}

// ordinaryTraces lists what a cluster of the user could leave: processes, cgroups, mounts, interfaces, and files.
const ordinaryTraces = "ps -u " + ordinaryUser + " -o comm= | sort; find /sys/fs/cgroup/user.slice -name '*kedge*'; cut -d' ' -f2- /proc/mounts | grep -i kedge; ls /sys/class/net; ls -A /run/user/$(id -u " + ordinaryUser + ") | grep kedge; true"
