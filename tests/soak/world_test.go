package soak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/load"
)

const (
	// apps and replicas are the numbers of Deployments and of their pods. With the other workloads these are about a hundred pods.
	apps     = 8
	replicas = 9
	// writePause is the time between two writes whose acknowledgement is remembered.
	writePause = 200 * time.Millisecond
)

// node is a node of the cluster: a server or an agent.
type node struct {
	*harness.Host
	process interface {
		Start()
		Kill9()
		Terminate()
		WaitReady()
		Process() *os.Process
	}
	server bool
	// steady nodes are never restarted, so that growth shows.
	steady bool
}

// world is the cluster. Its embedded Cluster is seen from a server that is never restarted.
type world struct {
	*cluster.Cluster
	nodes []*node
	// outside is a host that is no node.
	outside *harness.Host
	writes  *load.Writes
	// evidence is a folder that pods on all nodes share with this test. A stranger that reaches what it must not leaves a file.
	evidence string
	// counts has the highest count of the volume of each pod.
	counts map[string]int
}

// newWorld starts three servers and three agents with everything that users run.
func newWorld(t *testing.T) *world {
	t.Helper()
	network := harness.NewNetwork(t)
	host := func(name string) *harness.Host {
		h := cluster.NewHost(t, network, name)
		cluster.PreloadBusybox(t, h)
		return h
	}
	// All hosts share the folders for temporary files of the machine: it is the place of the backup.
	backup := "--backup=file://" + t.TempDir()
	w := &world{outside: network.NewHost(t, "outside"), evidence: t.TempDir(), counts: map[string]int{}}
	first := host("server-1").StartServer(t, "--cluster-init", backup)
	first.WaitReady()
	w.nodes = append(w.nodes, &node{Host: first.Host, process: first, server: true, steady: true})
	for _, name := range []string{"server-2", "server-3"} {
		s := host(name).StartServer(t, append(cluster.Joining(first), backup)...)
		s.WaitReady()
		w.nodes = append(w.nodes, &node{Host: s.Host, process: s, server: true})
	}
	w.Cluster = cluster.Of(t, first)
	for _, name := range []string{"agent-1", "agent-2", "agent-3"} {
		a := host(name).StartAgent(t, first)
		a.WaitReady()
		w.nodes = append(w.nodes, &node{Host: a.Host, process: a, steady: name == "agent-1"})
	}
	w.Apply(policies)
	for n := range apps {
		w.Apply(fmt.Sprintf(app, n, replicas, image.TestserverName))
	}
	w.Apply(fmt.Sprintf(others, image.TestserverName, image.BusyboxName, w.evidence))
	w.Apply(gateway)
	w.writes = load.StartWrites(t, writePause, first.Client())
	return w
}

// policies are there before any pod: nobody but friends may reach the pods of web-0.
const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guard}
spec:
  podSelector: {matchLabels: {app: web-0}}
  ingress:
  - from:
    - podSelector: {matchLabels: {friend: "yes"}}
    - ipBlock: {cidr: 172.31.0.0/16}
`

// app is a Deployment with a Service.
const app = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-%[1]d}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web-%[1]d}}
  template:
    metadata: {labels: {app: web-%[1]d, friend: "yes"}}
    spec:
      terminationGracePeriodSeconds: 2
      topologySpreadConstraints:
      - {maxSkew: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web-%[1]d}}}
      tolerations:
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 60}
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 60}
      containers:
      - name: main
        image: %[3]q
        args: [serve, "8080"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 5}
---
apiVersion: v1
kind: Service
metadata: {name: web-%[1]d}
spec:
  selector: {app: web-%[1]d}
  ports: [{port: 80, targetPort: 8080}]
`

// others are a pod on each node, pods with volumes, clients, strangers that the policy keeps out, and work that begins each minute.
const others = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec: {terminationGracePeriodSeconds: 2, containers: [{name: main, image: %[1]q, args: [sleep]}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: kept}
spec:
  replicas: 3
  serviceName: kept
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: main
        image: %[2]q
        command: [sh, -c, "n=$(cat /data/count 2>/dev/null || echo 0); trap exit TERM; while true; do n=$((n + 1)); echo $n >/data/next && sync && mv /data/next /data/count; sleep 1 & wait; done"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client}
spec:
  replicas: 2
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client, friend: "yes"}}
    spec: {terminationGracePeriodSeconds: 2, containers: [{name: main, image: %[2]q, command: [sleep, "1000000"]}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: stranger}
spec:
  selector: {matchLabels: {app: stranger}}
  template:
    metadata: {labels: {app: stranger}}
    spec:
      terminationGracePeriodSeconds: 2
      volumes: [{name: evidence, hostPath: {path: %[3]q}}]
      containers:
      - name: main
        image: %[2]q
        command: [sh, -c, "trap exit TERM; while true; do wget -q -T 3 -O - http://web-0/ && date >>/evidence/reached; sleep 2 & wait; done"]
        volumeMounts: [{name: evidence, mountPath: /evidence}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: minute}
spec:
  schedule: "* * * * *"
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 1
  concurrencyPolicy: Replace
  jobTemplate:
    spec:
      backoffLimit: 6
      template:
        metadata: {labels: {app: minute}}
        spec: {restartPolicy: Never, containers: [{name: main, image: %[2]q, command: [sleep, "2"]}]}
`

const gateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front}
spec:
  parentRefs: [{name: front}]
  rules: [{backendRefs: [{name: web-1, port: 80}]}]
`
