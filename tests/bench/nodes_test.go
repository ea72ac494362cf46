package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/fakecri"
)

// TestNodes joins increasing numbers of agents to one server, and measures that server. It fails
// only if a node does not become Ready.
func TestNodes(t *testing.T) {
	harness.Require(t)
	options, err := readNodesOptions()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	report, err := newNodesReport(repository, options)
	if err != nil {
		t.Fatal(err)
	}
	network := harness.NewNetwork(t)
	host := network.NewHost(t, "server")
	server := host.StartServer(t, "--kube-apiserver-arg=profiling=true")
	server.WaitReady()
	useCopy(t)

	ready, err := watchNodes(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer ready.events.Stop()
	var agents []*harness.Agent
	for _, count := range options.Counts() {
		hosts := newNodes(t, network, server, len(agents), count)
		before, err := takeSnapshot(host)
		if err != nil {
			t.Fatal(err)
		}
		agentsBefore, err := cpuOf(agents)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		agents = append(agents, join(t, hosts, server, ready, len(agents))...)
		step := nodesStep{Agents: count, Added: len(hosts), Joining: time.Since(began).Seconds()}
		after, err := takeSnapshot(host)
		if err != nil {
			t.Fatal(err)
		}
		agentsAfter, err := cpuOf(agents)
		if err != nil {
			t.Fatal(err)
		}
		step.AgentsCPU = agentsAfter - agentsBefore
		step.JoiningCPU = after.Installation.CPU - before.Installation.CPU
		if n := len(report.Steps); n > 0 {
			step.JoiningCPU -= report.Steps[n-1].Idle.CPU / 100 * step.Joining
		}

		time.Sleep(options.Settle)
		// At this time a collection mostly frees memory of joins.
		if step.LiveHeap, step.Stacks, err = collect(server.Client()); err != nil {
			t.Fatal(err)
		}
		if err := step.Idle.measure(host, options.Idle); err != nil {
			t.Fatal(err)
		}
		report.Steps = append(report.Steps, step)
		fmt.Println(step)
	}
	saveProfiles(t, server, filepath.Join(repository, "build/bench"))
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, nodesFile), report); err != nil {
		t.Fatal(err)
	}
}

// newNodes makes the hosts of agents first to last-1, each with a container
// runtime.
func newNodes(t *testing.T, network *harness.Network, server *harness.Server, first, last int) []*harness.Host {
	var hosts []*harness.Host
	for i := first; i < last; i++ {
		host := network.NewHost(t, fmt.Sprintf("agent-%d", i+1))
		host.ShareHelpers(server.Host)
		fakecri.Start(t, host)
		hosts = append(hosts, host)
	}
	return hosts
}

// join makes an agent on each host join a server that has before agents, one after the other: in
// parallel they would mostly wait for each other on this machine's cores.
func join(t *testing.T, hosts []*harness.Host, server *harness.Server, ready *nodesReady, before int) (agents []*harness.Agent) {
	for i, host := range hosts {
		agents = append(agents, host.StartAgent(t, server, "--container-runtime-endpoint="+fakecri.Endpoint))
		// The server's own node is counted too.
		if err := ready.wait(before + i + 2); err != nil {
			t.Fatal(err)
		}
	}
	return agents
}

// useCopy makes kedges that start from now on run a copy of the executable. Processes share the
// memory of their executable, and PSS divides it among them, so the server's PSS would fall with
// each agent.
func useCopy(t *testing.T) {
	const variable = "KEDGE_BINARY"
	source, err := os.Open(os.Getenv(variable))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	path := filepath.Join(t.TempDir(), "kedge")
	target, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, path)
}

// saveProfiles saves profiles of the server's memory and processor time for later analysis.
func saveProfiles(t *testing.T, server *harness.Server, folder string) {
	for name, path := range map[string]string{
		"nodes-heap.pprof":      "/debug/pprof/heap",
		"nodes-cpu.pprof":       "/debug/pprof/profile?seconds=30",
		"nodes-goroutine.pprof": "/debug/pprof/goroutine",
	} {
		content, err := get(context.Background(), server.Client(), path)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), content, 0o644)
		}
		if err != nil {
			t.Fatalf("save profile: %v", err)
		}
	}
}
