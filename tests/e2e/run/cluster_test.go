package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestCluster has two clusters that stay, beside each other.
func TestCluster(t *testing.T) {
	m := newMachine(t)
	archive := m.testserver()
	m.start("run", "--", "true").want(t, 0)
	before := m.state()

	t.Log("faults")
	bad := filepath.Join(m.Scratch("manifests"), "config.yaml")
	if err := os.WriteFile(bad, []byte("node-lable: [a=b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start("cluster", "create").want(t, 1, "needs one name")
	m.start("cluster", "create", "No/Name").want(t, 1, "invalid cluster name")
	m.start("cluster", "create", "one", "--config", bad).want(t, 1, "node-lable", "node-label")
	if err := os.WriteFile(bad, []byte("node-label: [a=b]\ndata-dir: /data\nkubelet-arg: [cgroup-root=/x]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start("cluster", "create", "one", "--config", bad).want(t, 1, "config.yaml:2: data-dir cannot be set", "kubelet-arg cgroup-root cannot be set")
	m.start("cluster", "create", "one", "--config", "/dev/zero").want(t, 1, "a device")
	m.start("cluster", "start", "one").want(t, 1, "sudo kedge cluster list")
	m.start("cluster", "delete", "one").want(t, 1, "sudo kedge cluster list")
	starting := m.start("cluster", "create", "early", "--nodes=2")
	starting.waitFor(t, "machine")
	m.start("cluster", "delete", "early").want(t, 0)
	starting.want(t, 1, "ended before it was ready")
	m.wantState(before)

	t.Log("two clusters, one with settings, and a port")
	good := filepath.Join(m.Scratch("manifests"), "good.yaml")
	if err := os.WriteFile(good, []byte("node-label: [of=one]\nkubelet-arg: [max-pods=77]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one := m.start("cluster", "create", "one", "--nodes=2", "--publish=18080:"+servedPort, "--config", good)
	two := m.start("cluster", "create", "two")
	one.want(t, 0, "agent-1", "cluster one is ready")
	two.want(t, 0, "cluster two is ready")
	m.start("cluster", "create", "one").want(t, 1, "exists already", "sudo kedge cluster delete one")
	m.start("cluster", "create", "three", "--publish=18080:80").want(t, 1, "another program listens", "choose another port")
	if now := m.list(); len(now) != 2 {
		t.Errorf("a cluster that could not be made is there: %+v", now)
	}
	m.start("cluster", "load-image", "one", archive).want(t, 0, "kedge.test/testserver")
	m.start("cluster", "load-image", "one", "/none").want(t, 1, "/none")
	config := filepath.Join(m.Scratch("manifests"), "kubeconfig")
	text, err := m.Kedge(t.Context(), "cluster", "kubeconfig", "one").Output()
	if err == nil {
		err = os.WriteFile(config, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) *started {
		return m.start(append([]string{"kubectl", "--kubeconfig", config}, args...)...)
	}
	kubectl("get", "nodes", "--show-labels").want(t, 0, "server-1", "agent-1", "of=one")
	kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.capacity.pods}").want(t, 0, "77 77")
	kubectl("apply", "-f", m.manifest("web")).want(t, 0)
	kubectl("rollout", "status", "deployment/web", "--timeout=3m").want(t, 0)
	published := strings.Replace(query, "$(sed -n 's|.*https://\\(.*\\):6443|\\1|p' $KUBECONFIG):"+servedPort, "127.0.0.1:18080", 1)
	m.begin(m.program("bash", "-c", published)).want(t, 0, "web-")

	t.Log("a stopped cluster keeps its data, and has the same addresses afterwards")
	was := m.list()["one"]
	m.start("cluster", "stop", "one").want(t, 0)
	if now := m.list(); now["one"].State != "Stopped" || now["two"].State != "Ready" {
		t.Errorf("after the stop: %+v", now)
	}
	m.start("cluster", "kubeconfig", "one").want(t, 1, "sudo kedge cluster start one")
	m.start("cluster", "stop", "one").want(t, 0)
	m.start("cluster", "start", "one").want(t, 0, "cluster one is ready")
	m.start("cluster", "start", "one").want(t, 0, "runs already")
	if now := m.list()["one"]; now.API != was.API || now.State != "Ready" {
		t.Errorf("after the start: %+v, was %+v", now, was)
	}
	kubectl("rollout", "status", "deployment/web", "--timeout=3m").want(t, 0)
	m.begin(m.program("bash", "-c", published)).want(t, 0, "web-")

	t.Log("a killed keeper ends its cluster, which can be started again, also with a webhook for everything that nobody answers")
	m.refuseAll("two")
	if output, err := m.Command(t.Context(), "bash", "-c", "kill -9 $(grep -o '\"keeper\":[0-9]*' /run/kedge-clusters/two/status.json | cut -d: -f2)").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	m.start("cluster", "start", "two").want(t, 0, "cluster two is ready")
	m.start("cluster", "kubeconfig", "two").want(t, 0, "certificate-authority-data")
	m.wantRefusedAll("two")
	for _, name := range []string{"one", "two"} {
		m.start("cluster", "delete", name).want(t, 0)
	}
	if now := m.list(); len(now) != 0 {
		t.Errorf("after all are deleted: %+v", now)
	}
	for _, name := range []string{good, bad, config} {
		os.Remove(name)
	}
	m.wantState(before)
}

// refuseAll makes a webhook for everything in a cluster, which fails closed and which nobody answers.
func (m machine) refuseAll(name string) {
	m.Helper()
	file := filepath.Join(m.Scratch("manifests"), "closed.yaml")
	err := os.WriteFile(file, []byte(cluster.ClosedWebhook("{service: {namespace: default, name: hook, path: /}}")), 0o600)
	if err != nil {
		m.Fatal(err)
	}
	m.start("kubectl", "--kubeconfig", m.kubeconfig(name), "apply", "-f", file).want(m.T, 0)
	os.Remove(file)
	m.wantRefusedAll(name)
}

// wantRefusedAll waits until the webhook of refuseAll refuses.
func (m machine) wantRefusedAll(name string) {
	m.Helper()
	harness.Eventually(m.T, patience, "the webhook to refuse everything", func() error {
		output, err := m.Kedge(m.Context(), "kubectl", "--kubeconfig", m.kubeconfig(name), "create", "configmap", "x", "--dry-run=server").CombinedOutput()
		if err == nil || !strings.Contains(string(output), "closed.example.com") {
			return fmt.Errorf("it does not: %v: %s", err, output)
		}
		return nil
	})
}

// kubeconfig is the file with the credentials of a cluster that runs.
func (m machine) kubeconfig(name string) string { return "/run/kedge-clusters/" + name + "/kubeconfig" }

// listed is a cluster of `kedge cluster list`.
type listed struct{ Name, State, API string }

// list returns the clusters by their names.
func (m machine) list() map[string]listed {
	m.Helper()
	text, err := m.Kedge(m.Context(), "cluster", "list", "-o", "json").Output()
	if err != nil {
		m.Fatal(err)
	}
	var list []listed
	if err := json.Unmarshal(text, &list); err != nil {
		m.Fatal(err)
	}
	clusters := map[string]listed{}
	for _, c := range list {
		clusters[c.Name] = c
	}
	return clusters
}

// TestServers runs a cluster of three servers and an agent.
func TestServers(t *testing.T) {
	m := newMachine(t)
	s := m.command("run", "--nodes=4", "--servers=3", "--", "bash", "-c", `"$KEDGE_PROGRAM" kubectl wait --for=condition=Ready node --all --timeout=2m && "$KEDGE_PROGRAM" kubectl get nodes`)
	s.Env = append(s.Env, "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"))
	m.begin(s).want(t, 0, "server-1", "server-2", "server-3", "agent-1", "etcd")
}

// TestOutside has pods that reach the outside of a cluster, by name and by address.
func TestOutside(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "curl", "nftables", "iproute2")
	network := harness.NewNetwork(t)
	m, outside := machine{t, network.NewHost(t, "machine")}, machine{t, network.NewHost(t, "outside")}
	archive := m.testserver()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	program := image.TestserverProgram(repository)
	outside.begin(outside.program(program, "serve", "8000"))
	outside.begin(outside.program(program, "dns", "outside.test", outside.Address.String()))
	m.begin(m.program(program, "serve", "8000"))
	m.WriteFile("/etc/resolv.conf", "nameserver "+outside.Address.String()+"\n")
	script := `
		kubectl() { "$KEDGE_PROGRAM" kubectl "$@"; }
		for url in http://outside.test:8000/by-name http://$OUTSIDE:8000/by-address http://$MACHINE:8000/to-the-machine; do
			kubectl run fetch --image=` + image.TestserverName + ` --restart=Never -- fetch $url
			kubectl wait pod/fetch --for=jsonpath='{.status.phase}'=Succeeded --timeout=2m || kubectl describe pod fetch
			kubectl logs fetch
			kubectl delete pod fetch --now
		done`
	s := m.command("run", "--image", archive, "--", "bash", "-ec", script)
	s.Env = append(s.Env, "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"), "OUTSIDE="+outside.Address.String(), "MACHINE="+m.Address.String())
	// Others see the machine, and the machine sees an address of the cluster.
	m.begin(s).want(t, 0, "/by-name", "/by-address", "/to-the-machine", m.Address.String(), "198.18.0.254")
}

// TestRegistry pushes an image to a cluster, and has a pod run it, also after the cluster was stopped.
func TestRegistry(t *testing.T) {
	m := newMachine(t)
	harness.Need(t, "skopeo")
	archive := m.testserver()
	m.start("run", "--registry=none", "--", "true").want(t, 1, "such as 5001")
	m.start("cluster", "create", "dev", "--nodes=2", "--registry=5001").want(t, 0, "cluster dev is ready")
	m.start("cluster", "list").want(t, 0, "localhost:5001")
	m.start("run", "--registry=5001", "--", "true").want(t, 1, "another program listens", "choose another port")
	m.begin(m.program("skopeo", "copy", "--insecure-policy", "--dest-tls-verify=false", "oci-archive:"+archive, "docker://localhost:5001/team/app:1")).want(t, 0)
	run := func(name string) {
		t.Helper()
		// Each node pulls it.
		script := `
			k() { "$KEDGE_PROGRAM" kubectl --kubeconfig /run/kedge-clusters/dev/kubeconfig "$@"; }
			for node in server-1 agent-1; do
				k run $NAME-$node --image=localhost:5001/team/app:1 --image-pull-policy=Always --overrides="{\"spec\":{\"nodeName\":\"$node\"}}" -- sleep
				k wait pod/$NAME-$node --for=condition=Ready --timeout=2m || k describe pod $NAME-$node
			done`
		s := m.program("bash", "-ec", script)
		s.Env = append(s.Env, "NAME="+name, "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"))
		m.begin(s).want(t, 0, name+"-server-1 condition met", name+"-agent-1 condition met")
	}
	run("first")
	m.start("cluster", "stop", "dev").want(t, 0)
	m.start("cluster", "start", "dev").want(t, 0)
	run("second")
	m.start("cluster", "delete", "dev").want(t, 0)
}
