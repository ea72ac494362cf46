package upgrade

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/load"
)

var busybox = sync.OnceValues(func() (string, error) {
	repository, err := harness.Repository()
	if err != nil {
		return "", err
	}
	return image.Busybox(repository)
})

// newHost makes a host that runs an executable of kedge.
func newHost(t *testing.T, network *harness.Network, name, kedge string) *harness.Host {
	t.Helper()
	archive, err := busybox()
	if err != nil {
		t.Fatalf("build image: %v", err)
	}
	host := cluster.NewHost(t, network, name)
	host.Preload(archive)
	host.Install(kedge)
	return host
}

// versionOf returns the version that an executable of kedge says it has.
func versionOf(t *testing.T, kedge string) string {
	t.Helper()
	output, err := exec.Command(kedge, "--version").Output()
	version, ok := strings.CutPrefix(strings.TrimSpace(string(output)), "kedge ")
	if err != nil || !ok {
		t.Fatalf("%s --version: %v: %s", kedge, err, output)
	}
	return version
}

// daemon is a kedge that runs on a host.
type daemon interface {
	Start()
	Terminate()
	Kill9()
	Restart()
	Runs() bool
	Process() *os.Process
	WaitReady()
	WaitExit(time.Duration) int
	LogTail() string
}

// node is a host with its kedge.
type node struct {
	*harness.Host
	daemon
}

// world is a cluster with pods that serve and write, a client that asks them all the time, and a client
// that writes to the API all the time.
type world struct {
	*cluster.Cluster
	servers, agents []node
	clients         []kubernetes.Interface // of each server
	loads           map[string]*load.Load
	writes          *load.Writes
	// containers are those that must not change.
	containers map[string]string
}

// work is three pods of a Deployment, and a pod of a StatefulSet whose claim must keep its file.
var work = fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: main
        image: %s
        args: [serve, %q]
        readinessProbe: {httpGet: {path: /, port: %s}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: kept}
spec:
  serviceName: kept
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec:
      containers:
      - name: main
        image: %s
        args: [sh, -c, "echo kept >>/data/file; while date >/data/beat && sync; do sleep 1; done"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, image.TestserverName, cluster.WebPort, cluster.WebPort, image.BusyboxName)

// newWorld starts agents on hosts, and then the work and its clients.
func newWorld(t *testing.T, network *harness.Network, servers []*harness.Server, agents ...*harness.Host) *world {
	t.Helper()
	w := &world{Cluster: cluster.Of(t, servers[0]), loads: map[string]*load.Load{}}
	for _, server := range servers {
		w.servers, w.clients = append(w.servers, node{server.Host, server}), append(w.clients, server.Client())
	}
	for _, host := range agents {
		w.agents = append(w.agents, node{host, host.StartAgent(t, servers[0])})
	}
	for _, agent := range w.agents {
		agent.WaitReady()
	}
	w.Apply(work)
	port := w.ServeWeb()
	for _, object := range []string{"deployment/web", "statefulset/kept"} {
		w.Kubectl("rollout", "status", object, "--timeout="+cluster.Patience.String())
	}
	w.containers = w.Containers()

	outside := network.NewHost(t, "client")
	for _, node := range w.nodes() {
		address := node.Address.String() + ":" + port
		w.Eventually(node.Name+" to serve", func() error {
			_, err := outside.Get(address)
			return err
		})
		cfg := load.Config{Dial: outside.DialContext, Address: address, URL: "http://web/", Workers: 1, Pause: 100 * time.Millisecond}
		w.loads[node.Name+", one connection"] = load.Start(t, cfg)
		cfg.Fresh = true
		w.loads[node.Name+", new connections"] = load.Start(t, cfg)
	}
	w.writes = load.StartWrites(t, 50*time.Millisecond, w.clients...)
	return w
}

// nodes returns the servers and the agents.
func (w *world) nodes() []node { return slices.Concat(w.servers, w.agents) }

// runs waits until a node is of a version of kedge.
func (w *world) runs(node, version string) {
	w.Helper()
	w.Eventually(node+" to run "+version, func() error {
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		found, err := w.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && found.Status.NodeInfo.KubeletVersion != version {
			err = fmt.Errorf("it runs %s", found.Status.NodeInfo.KubeletVersion)
		}
		return err
	})
}

// unchanged checks that all containers run as they did, and that writes go on.
func (w *world) unchanged() {
	w.Helper()
	w.writes.More(20)
	w.WantSameContainers(w.containers)
}

// works checks that the cluster can begin something new on a node.
func (w *world) works(name, node string) {
	w.Helper()
	w.unchanged()
	w.RunWeb(name, node)
	w.In(name, "exec in "+name, func(output string) bool { return strings.Contains(output, "hostname="+name) },
		"/testserver", "fetch", "http://127.0.0.1:"+cluster.WebPort)
	if logs := w.Kubectl("logs", name); !strings.Contains(logs, "served /") {
		w.Errorf("the log of %s is %q", name, logs)
	}
	w.containers = w.Containers()
}

// unharmed ends the clients. It checks that none of their requests failed, that nothing is lost, and that
// no container has changed.
func (w *world) unharmed() {
	w.Helper()
	w.unchanged()
	for what, load := range w.loads {
		load.Stop(what)
	}
	w.writes.Stop()
	for _, client := range w.clients {
		w.writes.WantAll(client)
	}
	w.In("kept-0", "the file of the claim", func(content string) bool { return content == "kept" }, "cat", "/data/file")
}
