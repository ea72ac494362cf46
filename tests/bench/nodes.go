package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

// nodesFile is a path below the source tree.
const nodesFile = "build/bench/nodes.json"

// nodesTimeout limits how long the next nodes may take to become Ready.
const nodesTimeout = 5 * time.Minute

// nodesOptions are settings that the environment can change.
type nodesOptions struct {
	// Nodes is the highest number of agents: BENCH_NODES.
	Nodes int `json:"nodes"`
	// Settle is the time from the last node's readiness to the idle time, and Idle is the
	// idle time: BENCH_NODES_SETTLE and BENCH_NODES_IDLE.
	Settle time.Duration `json:"settle"`
	Idle   time.Duration `json:"idle"`
}

func readNodesOptions() (nodesOptions, error) {
	o := nodesOptions{Nodes: 50, Settle: 30 * time.Second, Idle: 40 * time.Second}
	var err error
	if text := os.Getenv("BENCH_NODES"); text != "" {
		if o.Nodes, err = strconv.Atoi(text); err != nil || o.Nodes < 2 {
			return o, fmt.Errorf("BENCH_NODES is %q, which is not a number of agents, two or more", text)
		}
	}
	return o, readDurations(map[string]*time.Duration{"BENCH_NODES_SETTLE": &o.Settle, "BENCH_NODES_IDLE": &o.Idle})
}

// Counts returns the numbers of agents at which the server is measured: none, half and all. The
// steps have equal sizes, so that they can be compared: an agent finishes part of its start after
// it is Ready, while later agents join.
func (o nodesOptions) Counts() []int { return []int{0, o.Nodes / 2, o.Nodes} }

// nodesStep has the results for the server with a number of agents.
type nodesStep struct {
	// Agents is how many agents have joined, Added how many of them in this step. The step took Joining
	// seconds, and JoiningCPU seconds of the server's processor time beyond those that it
	// needs when idle.
	Agents     int     `json:"agents"`
	Added      int     `json:"added"`
	Joining    float64 `json:"joiningSeconds"`
	JoiningCPU float64 `json:"joiningCPUSeconds"`
	// AgentsCPU is the processor time in seconds that all agents, including earlier ones, needed in
	// this step.
	AgentsCPU float64 `json:"agentsCPUSeconds"`
	// LiveHeap is the size of Go objects in bytes after a garbage collection, and Stacks that of
	// the stacks of goroutines.
	LiveHeap float64   `json:"liveHeap"`
	Stacks   float64   `json:"stacks"`
	Idle     nodesIdle `json:"idle"`
}

// nodesIdle has the resource use of a server without requests.
type nodesIdle struct {
	PSS       float64 `json:"pss"`
	Anonymous float64 `json:"anonymous"`
	// CPU is percent of one core. Written is how many bytes per minute are made dirty.
	CPU     float64 `json:"cpuPercent"`
	Written float64 `json:"writtenPerMinute"`
}

// nodesSamples is how often memory is read at each number of nodes.
const nodesSamples = 5

// measure watches the processes of a host for a time.
func (n *nodesIdle) measure(h *harness.Host, idle time.Duration) error {
	all := make([]snapshot, nodesSamples)
	var pss, anonymous []float64
	began := time.Now()
	for i := range all {
		if i > 0 {
			time.Sleep(idle / (nodesSamples - 1))
		}
		var err error
		if all[i], err = takeSnapshot(h); err != nil {
			return fmt.Errorf("read processes: %w", err)
		}
		pss = append(pss, all[i].Installation.PSS)
		anonymous = append(anonymous, all[i].Installation.Anonymous)
	}
	took := time.Since(began)
	first, last := all[0].Installation, all[nodesSamples-1].Installation
	n.PSS, n.Anonymous = median(pss), median(anonymous)
	n.CPU = 100 * (last.CPU - first.CPU) / took.Seconds()
	n.Written = (last.Written - first.Written) / took.Minutes()
	return nil
}

// nodesRow is a line of the table.
type nodesRow = figure[nodesStep]

var nodesRows = []nodesRow{
	{"PSS, MiB", mebibyte, func(s nodesStep) float64 { return s.Idle.PSS }},
	{"anonymous, MiB", mebibyte, func(s nodesStep) float64 { return s.Idle.Anonymous }},
	{"live Go heap, MiB", mebibyte, func(s nodesStep) float64 { return s.LiveHeap }},
	{"stacks, MiB", mebibyte, func(s nodesStep) float64 { return s.Stacks }},
	{"CPU, % of a core", 1, func(s nodesStep) float64 { return s.Idle.CPU }},
	{"written, KiB a minute", 1024, func(s nodesStep) float64 { return s.Idle.Written }},
}

// String describes the results of one step in a line.
func (s nodesStep) String() string {
	text := fmt.Sprintf("%d agents: %d joined in %.1f s, %.1f s of the server's CPU;", s.Agents, s.Added, s.Joining, s.JoiningCPU)
	for _, row := range nodesRows {
		text += fmt.Sprintf(" %s %s;", row.name, number(row.of(s)))
	}
	return text
}

// nodesReport has all results of the benchmark of many nodes.
type nodesReport struct {
	origin
	Options nodesOptions `json:"options"`
	Steps   []nodesStep  `json:"steps"`
}

func newNodesReport(repository string, o nodesOptions) (*nodesReport, error) {
	origin, err := newOrigin(repository)
	return &nodesReport{origin: origin, Options: o}, err
}

// Table returns the values of the server at each number of agents, what an agent adds, and how the
// second half of the agents compares with the first.
func (r *nodesReport) Table() string {
	var text strings.Builder
	text.WriteString(r.heading())
	fmt.Fprintf(&text, "the server with agents; idle figures over %s, %s after the last was Ready\n\n", r.Options.Idle, r.Options.Settle)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name string, values []string, perNode, growth string) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t\n", name, strings.Join(values, "\t"), perNode, growth)
	}
	var agents []string
	for _, step := range r.Steps {
		agents = append(agents, strconv.Itoa(step.Agents))
	}
	line("agents", agents, "per agent", "2nd half : 1st")
	for _, row := range []nodesRow{
		{"seconds till all are Ready", 1, func(s nodesStep) float64 { return s.Joining }},
		{"server's CPU for that, s", 1, func(s nodesStep) float64 { return s.JoiningCPU }},
		{"agents' CPU for that, s", 1, func(s nodesStep) float64 { return s.AgentsCPU }},
	} {
		// Each step has only its own value, so the sums count.
		line(r.line(row, r.sums(row.value)))
	}
	for _, row := range nodesRows {
		var values []float64
		for _, step := range r.Steps {
			values = append(values, row.of(step))
		}
		line(r.line(row, values))
	}
	table.Flush()
	text.WriteString("\nper agent: the last column of agents less the first, divided by their number\n" +
		"2nd half : 1st: what an agent of the second half adds to what one of the first adds; above 1 is worse than linear\n")
	return text.String()
}

func (r *nodesReport) line(row nodesRow, values []float64) (name string, texts []string, perNode, growth string) {
	for _, value := range values {
		texts = append(texts, number(value))
	}
	first, half, last := 0, len(values)-2, len(values)-1
	slope := func(from, to int) float64 {
		return (values[to] - values[from]) / float64(r.Steps[to].Agents-r.Steps[from].Agents)
	}
	return row.name, texts, fmt.Sprintf("%.3f", slope(first, last)), ratio(slope(half, last), slope(first, half))
}

// sums returns the running sums of a value over the steps.
func (r *nodesReport) sums(value func(nodesStep) float64) []float64 {
	var sums []float64
	sum := 0.0
	for _, step := range r.Steps {
		sum += value(step)
		sums = append(sums, sum)
	}
	return sums
}

// nodesReady counts the nodes that are Ready. One watch costs the server less than repeated requests.
type nodesReady struct {
	events watch.Interface
	names  map[string]bool
}

func watchNodes(ctx context.Context, server *harness.Server) (*nodesReady, error) {
	events, err := server.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return &nodesReady{events, map[string]bool{}}, nil
}

// wait waits until count nodes are Ready.
func (n *nodesReady) wait(count int) error {
	deadline := time.After(nodesTimeout)
	for len(n.names) < count {
		select {
		case event, open := <-n.events.ResultChan():
			node, ok := event.Object.(*corev1.Node)
			if !open || !ok {
				return fmt.Errorf("watch nodes: it ended with %v", event.Object)
			}
			delete(n.names, node.Name)
			if event.Type != watch.Deleted && nodeReady(event) {
				n.names[node.Name] = true
			}
		case <-deadline:
			return fmt.Errorf("%d nodes of %d are Ready after %s", len(n.names), count, nodesTimeout)
		}
	}
	return nil
}

// cpuOf returns the processor time in seconds that agents have used since they started.
func cpuOf(agents []*harness.Agent) (float64, error) {
	sum := 0.0
	for _, agent := range agents {
		process, err := procfs.NewProc(agent.Process().Pid)
		if err != nil {
			return 0, fmt.Errorf("read agent %s: %w", agent.Host.Name, err)
		}
		_, used, err := readProcess(process)
		if err != nil {
			return 0, fmt.Errorf("read agent %s: %w", agent.Host.Name, err)
		}
		sum += used.CPU
	}
	return sum, nil
}

// get requests a path of the API server's own information.
func get(ctx context.Context, client kubernetes.Interface, path string) ([]byte, error) {
	return client.Discovery().RESTClient().Get().RequestURI(path).DoRaw(ctx)
}

// collect runs the garbage collection of the process that serves the API. It returns the bytes of
// objects and of stacks that are in use after that.
func collect(client kubernetes.Interface) (heap, stacks float64, err error) {
	profile, err := get(context.Background(), client, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, 0, fmt.Errorf("collect garbage: %w", err)
	}
	// runtime.MemStats follow the profile as comments.
	lines := bufio.NewScanner(bytes.NewReader(profile))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "# Stack = "); ok {
			inUse, _, _ := strings.Cut(text, " / ")
			if stacks, err = strconv.ParseFloat(inUse, 64); err != nil {
				return 0, 0, fmt.Errorf("collect garbage: %w", err)
			}
		}
		if text, ok := strings.CutPrefix(lines.Text(), "# HeapAlloc = "); ok {
			if heap, err = strconv.ParseFloat(text, 64); err != nil {
				return 0, 0, fmt.Errorf("collect garbage: %w", err)
			}
		}
	}
	if heap == 0 || stacks == 0 {
		return 0, 0, fmt.Errorf("collect garbage: the profile has no HeapAlloc, or no Stack")
	}
	return heap, stacks, nil
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
