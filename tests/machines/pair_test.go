package machines

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// secondName is the host name of the machine that joins.
const secondName = "second"

// backends are flannel's ways between nodes.
var backends = []string{"vxlan", "host-gw", "wireguard-native"}

// peers is a pod on every node that answers requests, and one that measures.
const peers = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: peers}
spec:
  selector: {matchLabels: {app: peers}}
  template:
    metadata: {labels: {app: peers}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: serve, image: %[1]s, args: [serve]}
      - {name: measured, image: %[1]s, args: [serve-measure, "8081"]}
`

// pairs has an agent on a second machine. Pods of both machines reach each other with each backend of flannel.
func pairs(t *testing.T, l *life) {
	second := l.prepare(t, l.network, secondName)
	second.start(t)
	second.writeRelease(t, "/opt/new", l.kedge(t))
	second.writeImages(t)
	token := l.sh(t, "kedge token create --ttl=1h")
	wants(t, second.sh(t, fmt.Sprintf("KEDGE_URL=https://%s:6443 KEDGE_TOKEN='%s' INSTALL_KEDGE_TIMEOUT=900 sh /opt/new/install.sh", l.address, token)), "is ready")
	l.nodeReady(t, secondName)
	l.apply(t, fmt.Sprintf(peers, image.TestserverName))
	defer func() {
		l.kubectl(t, "delete daemonset/peers --cascade=foreground")
		second.cut(t)
		l.kubectl(t, "delete node/"+secondName)
	}()
	l.sh(t, "cp /etc/kedge/config.yaml /run/config.yaml 2>/dev/null; true")
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			l.sh(t, "mkdir -p /etc/kedge; { cat /run/config.yaml 2>/dev/null; echo 'flannel-backend: "+backend+"'; } >/etc/kedge/config.yaml")
			l.restartKedge(t)
			l.ready(t)
			second.restartKedge(t)
			l.nodeReady(t, secondName)
			l.kubectl(t, "rollout status daemonset/peers --timeout=15m")
			l.reachEachOther(t)
		})
	}
	t.Logf("the agent's memory (PSS): %s", second.pss(t))
	l.sh(t, "rm /etc/kedge/config.yaml; [ ! -e /run/config.yaml ] || mv /run/config.yaml /etc/kedge/config.yaml")
	l.restartKedge(t)
	l.ready(t)
}

// reachEachOther wants each pod of the DaemonSet to reach the other one, and logs how fast the way between them is.
func (l *life) reachEachOther(t *testing.T) {
	t.Helper()
	pods := strings.Fields(l.kubectl(t, "get pods -l app=peers -o jsonpath='{range .items[*]}{.metadata.name}={.status.podIP} {end}'"))
	if len(pods) != 2 {
		t.Fatalf("the pods are %v, want one on each machine", pods)
	}
	for i, pod := range pods {
		name, _, _ := strings.Cut(pod, "=")
		_, other, _ := strings.Cut(pods[1-i], "=")
		l.untilKubectl(t, "exec "+name+" -c serve -- /testserver fetch http://"+other+":8080 | grep peers-")
		t.Logf("from %s: %s", name, l.kubectl(t, "exec "+name+" -c serve -- /testserver measure "+other+":8081 2"))
	}
}
