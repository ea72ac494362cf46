// Package seeing tests what a user can see of a cluster and of the kedge on a host: status,
// settings, the log, and the support bundle, which must not contain secrets.
package seeing

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	configFile = "/etc/kedge/config.yaml"
	logFile    = "/var/log/kedge/kedge.log"
	// settings has secrets that no bundle may contain.
	settings = `log: ` + logFile + `
alsologtostderr: true
log-format: json
agent-token: hush-agent-token
s3-access-key: hush-access-key
s3-secret-key: hush-secret-key
backup: file:///opt/backup
`
)

// objects have a secret in every place of a cluster that may have one.
var objects = fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: quiet}
stringData: {password: hush-secret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: quiet}
data: {password: hush-configmap}
---
apiVersion: v1
kind: Pod
metadata: {name: quiet, annotations: {note: hush-annotation}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]s
    args: [serve, hush-argument]
    env: [{name: PASSWORD, value: hush-environment}]
    envFrom: [{secretRef: {name: quiet}}]
    readinessProbe: {exec: {command: [/nothing, hush-probe]}, periodSeconds: 1}
    lifecycle: {postStart: {exec: {command: [/nothing, hush-hook]}}}
`, image.TestserverName)

func TestSeeing(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	host.WriteFile(configFile, settings)
	server := host.StartServer(t)
	server.WaitReady()
	if output, err := host.Kedge(t.Context(), "backup", "key").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	c := &seen{Cluster: cluster.Of(t, server)}
	agent := c.Join(network, "agent-1")
	c.Apply(objects)

	c.sockets()
	c.config()
	c.log()
	c.reload()
	c.metrics()
	c.status(agent)

	c.Log("the bundle of a kedge that runs")
	c.Eventually("an event of the pod", func() error {
		if events := c.Kubectl("get", "events"); !strings.Contains(events, "quiet") {
			return errors.New(events)
		}
		return nil
	})
	files := c.bundle(host, "running.tar.gz", server.Token())
	for file, text := range map[string]string{
		"status.json":               `"server-1"`,
		"version.txt":               "kedge ",
		"config.yaml":               "agent-token: (hidden) # " + configFile,
		"config-of-a-start.yaml":    "s3-secret-key: (hidden)",
		"check-config.txt":          "kernel",
		"profiles/goroutine.txt":    "settings.(*Settings)",
		"profiles/heap.pb.gz":       "",
		"network/nft.txt":           "table",
		"network/interfaces.txt":    "eth0",
		"network/routes.txt":        "10.42.",
		"containers/containers.txt": "quiet",
		"containers/pods.txt":       "quiet",
		"containers/images.txt":     "pause",
		"log/kedge.log":             `"level":"info"`,
		"host/proc/version":         "Linux",
		"cluster/nodes.yaml":        "agent-1",
		"cluster/pods.yaml":         "name: quiet",
		"cluster/events.txt":        "quiet",
	} {
		if found, ok := files[file]; !ok || !strings.Contains(found, text) {
			t.Errorf("%s of the bundle has no %q: %s\nmissing: %s", file, text, found, files["missing.txt"])
		}
	}
	files = c.bundle(agent.Host, "agent.tar.gz", server.Token())
	if !strings.Contains(files["missing.txt"], "only a server can tell of the cluster") {
		t.Errorf("of an agent: %s", files["missing.txt"])
	}

	c.Log("the bundle of a kedge that does not run, because of its settings")
	server.Terminate()
	host.WriteFile(configFile, settings+"log-level: nonsense\n")
	files = c.bundle(host, "down.tar.gz", server.Token())
	if !strings.Contains(files["missing.txt"], "kedge is not running") || !strings.Contains(files["missing.txt"], `log-level: invalid log level "nonsense"`) || files["check-config.txt"] == "" || files["log/kedge.log"] == "" {
		t.Errorf("missing.txt of the bundle: got %s, want that kedge is not running, and why", files["missing.txt"])
	}
	host.WriteFile(configFile, settings+"datastore-endpoint: mysql://kedge:hush-p@ssword@tcp(192.0.2.1)/kedge\n")
	files = c.bundle(host, "database.tar.gz", server.Token())
	if !strings.Contains(files["config-of-a-start.yaml"], "mysql://kedge:(hidden)@tcp(192.0.2.1)/kedge") || !strings.Contains(files["log/kedge.log"], `"level":"info"`) {
		t.Errorf("got %s", files["config-of-a-start.yaml"])
	}
}

// seen is the cluster that is looked at.
type seen struct{ *cluster.Cluster }

// kedge runs kedge on the server's host and returns its output and exit status.
func (c *seen) kedge(args ...string) (string, error) {
	output, err := c.Server.Host.Kedge(c.Context(), args...).Output()
	return string(output), err
}

// sockets checks that there is one socket for kedge's commands, and that all sockets are only for root.
func (c *seen) sockets() {
	c.Helper()
	folder := c.Server.Host.Path("/run/kedge")
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o711 {
		c.Errorf("/run/kedge: %v, %v", info, err)
	}
	var found []string
	paths, _ := filepath.Glob(filepath.Join(folder, "*.sock"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil {
			c.Fatal(err)
		}
		if info.Mode().Type() == os.ModeSocket {
			found = append(found, fmt.Sprintf("%s %#o", filepath.Base(path), info.Mode().Perm()))
		}
	}
	if want := []string{"datastore.sock 0600", "kedge.sock 0600"}; !slices.Equal(found, want) {
		c.Errorf("the sockets in /run/kedge are %q, want %q", found, want)
	}
}

// config checks that each setting is shown with its source.
func (c *seen) config() {
	c.Helper()
	output, err := c.kedge("config", "print", "-o", "json")
	var found []config.Setting
	if err == nil {
		err = json.Unmarshal([]byte(output), &found)
	}
	if err != nil {
		c.Fatal(err)
	}
	for key, want := range map[string][2]string{
		"log":           {logFile, configFile + ":1"},
		"agent-token":   {config.Hidden, configFile + ":4"},
		"kubelet-arg":   {"[cgroup-root=" + c.Server.Host.Cgroup() + "]", "--kubelet-arg"},
		"s3-secret-key": {config.Hidden, configFile + ":6"},
		"data-dir":      {"/var/lib/kedge", "default"},
	} {
		if !slices.ContainsFunc(found, func(s config.Setting) bool {
			return s.Key == key && fmt.Sprint(s.Value) == want[0] && s.Source == want[1]
		}) {
			c.Errorf("%s is not %q in %s", key, want, output)
		}
	}
}

// logged returns the lines of the log file. Each is JSON.
func (c *seen) logged() (lines []map[string]any) {
	c.Helper()
	text, err := os.ReadFile(c.Server.Host.Path(logFile))
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			c.Fatalf("parse a line of the log: %v: %s", err, line)
		}
		lines = append(lines, fields)
	}
	return lines
}

// debugs counts debug messages by component.
func (c *seen) debugs() map[string]int {
	counts := map[string]int{}
	for _, line := range c.logged() {
		if component, _ := line["component"].(string); line["level"] == "debug" {
			counts[component]++
		}
	}
	return counts
}

// log changes the log level while kedge runs.
func (c *seen) log() {
	c.Helper()
	if now, err := c.kedge("log-level"); err != nil || now != "info\n" || len(c.debugs()) > 0 {
		c.Errorf("at first: %v, %s, %v", err, now, c.debugs())
	}
	if now, err := c.kedge("log-level", "containerd=debug"); err != nil || now != "info,containerd=debug\n" {
		c.Errorf("after the change: %v, %s", err, now)
	}
	c.RunDeployment("chatter")
	c.Eventually("debug messages of containerd only", func() error {
		if counts := c.debugs(); counts["containerd"] == 0 || len(counts) > 1 {
			return fmt.Errorf("they are of %v", counts)
		}
		return nil
	})
}

// reload makes kedge read its configuration again, by a signal and by a command.
func (c *seen) reload() {
	c.Helper()
	host := c.Server.Host
	host.WriteFile(configFile, settings+"log-level: warn\nnode-label: a=b\n")
	if err := c.Server.Process().Signal(syscall.SIGHUP); err != nil {
		c.Fatal(err)
	}
	c.Server.WaitLog("node-label changed: needs a restart of kedge")
	if now, err := c.kedge("log-level"); err != nil || now != "warn\n" {
		c.Errorf("after SIGHUP: %v, %s", err, now)
	}
	host.WriteFile(configFile, settings+"log-level: loud\n")
	if _, err := c.kedge("config", "reload"); err == nil || !strings.Contains(err.Error(), "stays as it was") {
		c.Errorf("a level that does not exist: %v", err)
	}
	host.WriteFile(configFile, settings)
	if changes, err := c.kedge("config", "reload"); err != nil || !strings.Contains(changes, "log-level is") || strings.Contains(changes, "restart") {
		c.Errorf("back: %v, %s", err, changes)
	}
}

// metrics compares kedge's own metrics, as Prometheus gets them, with those in docs/observing.md.
func (c *seen) metrics() {
	c.Helper()
	const page = "docs/observing.md"
	text := harness.Document(c, page)
	const prometheus = "--as=system:serviceaccount:default:prometheus"
	if _, err := c.TryKubectl("", "get", "--raw", "/metrics", prometheus); err == nil {
		c.Error("/metrics answers without credentials")
	}
	c.Kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=system:monitoring", "--serviceaccount=default:prometheus")
	served := c.Kubectl("get", "--raw", "/metrics", prometheus)
	// A node's gateway has metrics after its first request: TestPage of internal/node/gateway.
	_, ofNodes, _ := strings.Cut(text, "\nThe [gateway](gateway.md) of a node")
	ofNodes, _, _ = strings.Cut(ofNodes, "\nA server works out")
	for what, found := range map[string][2]string{
		page + " has %s, which is not in /metrics": {strings.Replace(text, ofNodes, "", 1), served},
		"/metrics has %s, which is not in " + page: {served, text},
	} {
		for _, name := range regexp.MustCompile(`(?m)^(?:# TYPE |\| `+"`"+`)(kedge_[a-z_]+)`).FindAllStringSubmatch(found[0], -1) {
			if !strings.Contains(found[1], name[1]) {
				c.Errorf(what, name[1])
			}
		}
	}
}

// status checks that an agent's loss is shown, with what to do.
func (c *seen) status(agent *harness.Agent) {
	c.Helper()
	text, err := c.kedge("status", "--components")
	if err != nil || !strings.Contains(text, "agent-1") {
		c.Errorf("of a cluster that is well: %v\n%s", err, text)
	}
	agent.Kill9()
	c.Eventually("status to miss the agent", func() error {
		output, failed := c.kedge("status", "-o", "json")
		var report status.Report
		if err := json.Unmarshal([]byte(output), &report); err != nil {
			return err
		}
		found := slices.ContainsFunc(report.Cluster.Problems, func(p status.Problem) bool {
			return strings.HasPrefix(p.What, "node agent-1 does not answer; it was last heard of ") && strings.Contains(p.Do, "kubectl delete node agent-1")
		})
		if failed == nil || len(report.Cluster.Nodes) != 2 || !found {
			return fmt.Errorf("%w: %s", failed, output)
		}
		return nil
	})
	text, _ = c.kedge("status")
	c.Logf("%s", text)
	if text, err := c.kedge("status", "--local", "--components"); err != nil || strings.Contains(text, "agent-1") {
		c.Errorf("of this host alone: %v\n%s", err, text)
	}
	agent.Start()
	agent.WaitReady()
}
