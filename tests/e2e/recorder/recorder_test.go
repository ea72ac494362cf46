// Package recorder plays a night: a disk fills, a pod takes too much memory, a link drops, kedge is upgraded and killed.
// The flight recorder must show each of it, also when kedge does not run.
package recorder

import (
	"crypto/tls"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// night is a cluster whose recordings are looked at.
type night struct {
	*cluster.Cluster
}

// recording is what `kedge recorder -o json` prints.
type recording struct {
	Samples []struct {
		At     time.Time
		Values map[string]float64
	}
	Moments []struct {
		At         time.Time
		Kind, Text string
	}
}

// ask runs `kedge recorder` on a host.
func (n *night) ask(host *harness.Host, args ...string) string {
	n.Helper()
	output, err := host.Kedge(n.Context(), append([]string{"recorder"}, args...)...).CombinedOutput()
	if err != nil {
		n.Fatalf("kedge recorder %v: %v: %s", args, err, output)
	}
	return string(output)
}

func (n *night) read(host *harness.Host, args ...string) (read recording) {
	n.Helper()
	if err := json.Unmarshal([]byte(n.ask(host, append(args, "--output=json")...)), &read); err != nil {
		n.Fatal(err)
	}
	return read
}

// shows waits until the recording of a host has a moment.
func (n *night) shows(host *harness.Host, kind, text string) {
	n.Helper()
	n.Eventually("a moment of "+host.Name+" about "+text, func() error {
		read := n.read(host)
		for _, moment := range read.Moments {
			if moment.Kind == kind && strings.Contains(moment.Text, text) {
				return nil
			}
		}
		return fmt.Errorf("the moments are %+v", read.Moments)
	})
}

// last returns the last value of a curve.
func (n *night) last(host *harness.Host, curve string) float64 {
	n.Helper()
	samples := n.read(host).Samples
	for i := len(samples) - 1; i >= 0; i-- {
		if v, ok := samples[i].Values[curve]; ok {
			return v
		}
	}
	return -1
}

func TestNight(t *testing.T) {
	harness.Require(t)
	next := harness.RequireNext(t)
	network := harness.NewNetwork(t)
	host, _ := network.NewHostOnDisk(t, "server-1")
	cluster.Preload(t, host)
	cluster.PreloadBusybox(t, host)
	server := host.StartServer(t)
	server.WaitReady()
	n := &night{cluster.Of(t, server)}
	agent := n.Join(network, "agent-1")

	n.shows(host, "start", "kedge v")
	n.shows(agent.Host, "start", "kedge v")
	n.RunDeployment("web")
	n.shows(host, "ScalingReplicaSet", "Deployment default/web: Scaled up replica set web-")

	n.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  nodeName: server-1
  restartPolicy: Never
  containers:
  - {name: main, image: %q, command: [tail, /dev/zero], resources: {limits: {memory: 32Mi}}}
`, image.BusyboxName))
	n.shows(host, "memory", "because memory was short")
	n.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec:
  nodeName: agent-1
  containers: [{name: main, image: "nowhere.test/missing:1"}]
`)
	n.shows(host, "Failed", "Pod default/missing:")

	n.drop(agent)
	n.fill(host)
	n.others(host)

	server.Terminate()
	host.InstallCopy(next)
	server.Start()
	server.WaitReady()
	n.shows(host, "start", ", after v")
	n.killed(server)
}

// drop takes the link of an agent away for a while.
func (n *night) drop(agent *harness.Agent) {
	n.Helper()
	set := func(state string) {
		n.Helper()
		if output, err := agent.Host.Command(n.Context(), "ip", "link", "set", "dev", "eth0", state).CombinedOutput(); err != nil {
			n.Fatalf("set the link %s: %v: %s", state, err, output)
		}
	}
	set("down")
	n.shows(agent.Host, "link", "Interface eth0 is down")
	n.shows(n.Server.Host, "NodeNotReady", "Node agent-1")
	set("up")
	n.shows(agent.Host, "link", "Interface eth0 is up")
	agent.WaitReady()
}

// fill fills half of the disk, and makes room again.
func (n *night) fill(host *harness.Host) {
	n.Helper()
	before := n.last(host, "disk-used")
	file := host.Path("/var/lib/filled")
	made, err := os.Create(file)
	if err != nil {
		n.Fatal(err)
	}
	defer made.Close()
	chunk := make([]byte, 64<<20)
	for range 64 { // 4 of 8 GiB
		if _, err := made.Write(chunk); err != nil {
			n.Fatal(err)
		}
	}
	n.Eventually("the disk to fill", func() error {
		if now := n.last(host, "disk-used"); now < before+40 {
			return fmt.Errorf("the curve went from %v to %v %%", before, now)
		}
		return nil
	})
	if err := os.Remove(file); err != nil {
		n.Fatal(err)
	}
}

// others looks at what a person sees, and at the recording of another node. Who may not read it, does not get it.
func (n *night) others(host *harness.Host) {
	n.Helper()
	table := n.ask(host)
	for _, want := range []string{"processors busy ", "commits of the datastore ", "requests to the API ", "▁", "memory: The kernel killed"} {
		if !strings.Contains(table, want) {
			n.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	n.Log(table)
	rows, err := csv.NewReader(strings.NewReader(n.ask(host, "--output=csv", "--since=10m"))).ReadAll()
	if err != nil || len(rows) < 10 {
		n.Errorf("CSV has %d rows, %v", len(rows), err)
	}
	if read := n.read(host, "--node=agent-1", "--since=10m"); len(read.Samples) < 5 {
		n.Errorf("the agent tells %d samples", len(read.Samples))
	}
	output, err := host.Kedge(n.Context(), "kubectl", "get", "--raw", "/api/v1/nodes/agent-1/proxy/recorder", "--as=tenant").CombinedOutput()
	if err == nil || !strings.Contains(string(output), "orbidden") {
		n.Errorf("by way of the API, a stranger gets %q, %v", output, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: host.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get("https://127.0.0.1:10250/recorder")
	if err != nil {
		n.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		n.Errorf("at the kubelet's port, a stranger gets %s", answer.Status)
	}
	for args, want := range map[string]string{
		"--since=2d":       "--since takes a duration up to 24h, such as 30m or 3h",
		"--since=48h":      "--since takes a duration up to 24h, such as 30m or 3h",
		"--node=nobody":    "the cluster has no node nobody",
		"--output=picture": "use table, json or csv",
	} {
		output, err := host.Kedge(n.Context(), "recorder", args).CombinedOutput()
		if err == nil || !strings.Contains(string(output), want) {
			n.Errorf("kedge recorder %s says %q, want %q", args, output, want)
		}
	}
}

// killed kills kedge, stops it, and cuts the power.
func (n *night) killed(server *harness.Server) {
	n.Helper()
	ready := time.Now()
	n.Eventually("a sample of the newest process", func() error {
		samples := n.read(server.Host).Samples
		if len(samples) == 0 || samples[len(samples)-1].At.Before(ready) {
			return fmt.Errorf("there are %d samples, and none of them is new", len(samples))
		}
		return nil
	})
	server.Kill9()
	dead := n.read(server.Host)
	if len(dead.Samples) == 0 || time.Since(dead.Samples[len(dead.Samples)-1].At) > 30*time.Second {
		n.Errorf("after a kill, the last of %d samples is old", len(dead.Samples))
	}
	server.Start()
	server.WaitReady()
	n.shows(server.Host, "killed", "kedge had ended without a stop")
	server.Terminate()
	n.shows(server.Host, "stop", "kedge stopped")
	files, err := filepath.Glob(server.Host.Path("/var/lib/kedge/recorder/*"))
	if err != nil || len(files) == 0 {
		n.Fatalf("the disk has the files %v, %v", files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.Size() > 100<<10 || info.Mode().Perm() != 0o600 {
			n.Errorf("%s: %v, %v", file, info, err)
		}
	}
	before := n.read(server.Host)
	server.Host.Reboot()
	after := n.read(server.Host)
	if len(after.Moments) < len(before.Moments) || len(after.Samples) < len(before.Samples)/7 {
		n.Errorf("a reboot leaves %d of %d moments, and %d of %d samples", len(after.Moments), len(before.Moments), len(after.Samples), len(before.Samples))
	}
}
