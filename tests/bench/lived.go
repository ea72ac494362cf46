package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	// livedFile and livedDir, which has the profiles, are paths below the source tree.
	livedFile = "build/bench/lived.json"
	livedDir  = "build/bench/lived"
	// livedPodCIDR has room for the /24 of each of 4,000 nodes.
	livedPodCIDR = "10.128.0.0/12"
	// livedTimeout limits how long the API may take to show the result of a step, and livedInterval is how
	// often it is asked.
	livedTimeout  = 15 * time.Minute
	livedInterval = time.Second
	livedWorkers  = 16
)

// livedOptions are settings that the environment can change.
type livedOptions struct {
	// Systems are measured: BENCH_LIVED_SYSTEM names the only one.
	Systems []string `json:"systems"`
	// Part divides all numbers of objects, except of CustomResourceDefinitions: BENCH_LIVED_PART.
	Part int `json:"part"`
	// Settle is the time from the end of a step to the idle time, and Burst is that time after a burst:
	// BENCH_LIVED_SETTLE and BENCH_LIVED_BURST.
	Settle time.Duration `json:"settle"`
	Burst  time.Duration `json:"burst"`
	// Idle is the idle time: BENCH_LIVED_IDLE.
	Idle time.Duration `json:"idle"`
}

func readLivedOptions() (livedOptions, error) {
	o := livedOptions{Systems: systems(), Part: 1, Settle: 40 * time.Second, Burst: 5 * time.Minute, Idle: 30 * time.Second}
	var err error
	if text := os.Getenv("BENCH_LIVED_PART"); text != "" {
		if o.Part, err = strconv.Atoi(text); err != nil || o.Part < 1 {
			return o, fmt.Errorf("BENCH_LIVED_PART is %q, which is not a number to divide by", text)
		}
	}
	if text := os.Getenv("BENCH_LIVED_SYSTEM"); text != "" {
		if !slices.Contains(systems(), text) {
			return o, fmt.Errorf("BENCH_LIVED_SYSTEM is %q: use one of %v", text, systems())
		}
		o.Systems = []string{text}
	}
	return o, readDurations(map[string]*time.Duration{"BENCH_LIVED_SETTLE": &o.Settle, "BENCH_LIVED_BURST": &o.Burst, "BENCH_LIVED_IDLE": &o.Idle})
}

// whole tells whether all sizes are those of the targets.
func (o livedOptions) whole() bool { return o.Part == 1 }

// of returns a part of a number, at least 1.
func (o livedOptions) of(number int) int { return max(1, number/o.Part) }

// life is what happens to a new cluster.
type life struct {
	name, title string
	// alone says that the systems live one after the other, because one of them already
	// keeps the processor busy.
	alone bool
	steps func(c *livedCluster) []livedStep
}

// livedStep is one step of a life. Its do returns when the API shows the result.
type livedStep struct {
	name string
	// unit is what the step adds, and number how many.
	unit   string
	number int
	// again says that it adds more of what the step before has added.
	again bool
	// burst says that the step leaves memory in use that has to come back. It then rests for longer.
	burst bool
	do    func(ctx context.Context) error
	// undo removes what do has made. It may be nil.
	undo func(ctx context.Context) error
}

const (
	stepFresh   = "fresh, with one pod"
	stepDeleted = "all of that deleted"
)

// withDeletion returns the steps of a life with the first and the last one, which all lives have in
// common. The last one removes what the others have made.
func (c *livedCluster) withDeletion(steps []livedStep) []livedStep {
	all := append([]livedStep{{name: stepFresh, do: func(context.Context) error { return nil }, undo: c.deleteEvents}}, steps...)
	return append(all, livedStep{name: stepDeleted, burst: true, do: func(ctx context.Context) error {
		for _, step := range slices.Backward(all) {
			if step.undo == nil {
				continue
			}
			if err := step.undo(ctx); err != nil {
				return fmt.Errorf("undo %q: %w", step.name, err)
			}
		}
		return nil
	}})
}

// livedCluster is a system that lives a life. The clients of it run in the process of the test, so what
// they use is not measured.
type livedCluster struct {
	*installation
	options livedOptions
	config  *rest.Config
	// client sends protobuf, as the programs of a cluster do.
	client  kubernetes.Interface
	dynamic dynamic.Interface
	// scratch is a folder of the machine.
	scratch string
}

// startLived starts a system, and waits for its first pod.
func startLived(t *testing.T, r *report, o livedOptions, system string) *livedCluster {
	t.Helper()
	c := &livedCluster{installation: newInstallation(t, r, system, 0), options: o, scratch: t.TempDir()}
	busybox, err := image.Busybox(r.repository)
	if err != nil {
		t.Fatal(err)
	}
	if c.baseline != nil {
		c.baseline.archives = []string{busybox}
		c.baseline.values.PodCIDR = livedPodCIDR
	} else {
		c.host.Preload(busybox)
		// With its gateway, kedge has the CRDs of gateway-api that some lives add.
		c.args = []string{"--kube-apiserver-arg=profiling=true", "--cluster-cidr=" + livedPodCIDR, "--disable=gateway"}
	}
	if _, err := observe(c.ctx, c.host, c.kubeconfig, c.start(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.connect(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *livedCluster) connect() error {
	var err error
	if c.config, err = restConfig(c.host, c.kubeconfig); err != nil {
		return err
	}
	if c.dynamic, err = dynamic.NewForConfig(c.config); err != nil {
		return err
	}
	binary := rest.CopyConfig(c.config)
	binary.ContentType = runtime.ContentTypeProtobuf
	c.client, err = kubernetes.NewForConfig(binary)
	return err
}

// until waits until check returns nil.
func until(ctx context.Context, what string, check func(ctx context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, livedInterval, livedTimeout, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, errors.Join(err, context.Cause(ctx), last))
	}
	return nil
}

// stage has the measurements of a system after a step.
type stage struct {
	Step   string `json:"step"`
	Unit   string `json:"unit,omitempty"`
	Number int    `json:"number,omitempty"`
	Again  bool   `json:"again,omitempty"`
	// Seconds is how long the step took, CPU is the processor time in seconds that the system used for it,
	// and Wrote is how many bytes reached its disk meanwhile.
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpuSeconds"`
	Wrote   float64 `json:"wrote"`
	// LiveHeap is the size in bytes of the Go objects of the process that serves the API, after the
	// idle time and a garbage collection.
	LiveHeap float64 `json:"liveHeap"`
	Rest     atRest  `json:"rest"`
}

// take takes a step, and notes what that takes.
func (c *livedCluster) take(step livedStep) (stage, error) {
	s := stage{Step: step.name, Unit: step.unit, Number: step.number, Again: step.again}
	before, err := takeSnapshot(c.host)
	if err != nil {
		return s, err
	}
	written, err := c.disk.Written()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := step.do(c.ctx); err != nil {
		return s, fmt.Errorf("%s: %s: %w", c.system, step.name, err)
	}
	s.Seconds = time.Since(began).Seconds()
	after, err := takeSnapshot(c.host)
	if err != nil {
		return s, err
	}
	s.CPU = after.CPU() - before.CPU()
	s.Wrote, err = c.disk.Written()
	s.Wrote -= written
	return s, err
}

// measure measures the system at rest.
func (c *livedCluster) measure(s *stage) error { return s.Rest.measure(c.installation, c.options.Idle) }

// saveProfiles notes the live heap, and writes profiles of the process that serves the API. path is
// the beginning of the names of files.
func (c *livedCluster) saveProfiles(s *stage, path string) error {
	var err error
	if s.LiveHeap, _, err = collect(c.client); err != nil {
		return err
	}
	for _, name := range []string{"heap", "goroutine"} {
		content, err := get(c.ctx, c.client, "/debug/pprof/"+name)
		if err == nil {
			err = os.WriteFile(path+"-"+name+".pprof", content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("save profile: %w", err)
		}
	}
	return nil
}

// fileName turns the name of a step into a part of a file's name.
func fileName(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), "-")
}
