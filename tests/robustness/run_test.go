package robustness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	// patience limits how long anything may take that a datastore does by itself.
	patience = 2 * time.Minute
	// judgePatience limits how long the judge may take when the traffic has ended.
	judgePatience = 15 * time.Minute
	// nemesesPerRun is how many faults a run makes.
	nemesesPerRun = 3
	// quiet is how long the traffic runs without faults.
	quiet = 2 * time.Second
)

// target is a datastore that runs, and what can happen to it.
type target struct {
	// endpoints are where the judge reaches it.
	endpoints []string
	// client is the host on which the judge runs, or nil if it runs on the machine.
	client *harness.Host
	etcd   bool
	// rows is a file with rows that the datastore has stored, or empty.
	rows string
	// histories is where violations leave their histories.
	histories string
	nemeses   []nemesis
	// revive starts again what has ended by itself, as systemd would.
	revive func()
}

// nemesis is a fault. make makes it and ends it, and draws its durations from the source.
type nemesis struct {
	name string
	make func(*rand.Rand)
}

// verdict is what the judge says: see the type Verdict of the suite.
type verdict struct {
	Violation, Inconclusive string
	Counts                  map[string]int
}

// judge is a running judge.
type judge struct {
	t      *testing.T
	input  io.WriteCloser
	output *bufio.Scanner
	wait   func() error
	kill   func() error
	// log is the file of its standard error.
	log string
}

// clientPanic is a panic of etcd's own client (client/v3/watch.go), which some interruptions of watches cause. It
// ends the judge, and shows nothing about the datastore.
const clientPanic = "panic: send on closed channel"

// startJudge starts the traffic, and waits until it runs.
func startJudge(t *testing.T, program string, on *target, seed uint64) *judge {
	t.Helper()
	args := []string{
		"-endpoints", strings.Join(on.endpoints, ","), "-seed", fmt.Sprint(seed), "-folder", on.histories,
		"-traffic", []string{"kubernetes", "kubernetes-create-delete"}[seed%2],
	}
	if on.etcd {
		args = append(args, "-etcd")
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "judge.log"))
	if err != nil {
		t.Fatal(err)
	}
	j := &judge{t: t, log: log.Name()}
	command := exec.CommandContext(t.Context(), program, args...)
	var process interface {
		Start() error
		Wait() error
	} = command
	if on.client != nil {
		hosted := on.client.Command(t.Context(), program, args...)
		command, process = hosted.Cmd.Cmd, hosted
	}
	command.Stderr, j.wait = log, process.Wait
	var output io.ReadCloser
	if j.input, err = command.StdinPipe(); err == nil {
		output, err = command.StdoutPipe()
	}
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatalf("start judge: %v", err)
	}
	j.kill = command.Process.Kill
	t.Cleanup(func() {
		if text, _ := os.ReadFile(log.Name()); t.Failed() && len(text) > 0 {
			t.Logf("the judge says:\n%s", tail(string(text)))
		}
		log.Close()
	})
	j.output = bufio.NewScanner(output)
	j.output.Buffer(nil, 1<<20)
	if !j.output.Scan() || j.output.Text() != "started" {
		t.Fatalf("the judge has not started: %q, %v", j.output.Text(), j.wait())
	}
	return j
}

// tail returns the end of a text.
func tail(text string) string { return text[max(0, len(text)-8000):] }

// end ends the traffic and returns the verdict.
func (j *judge) end(rows string) verdict {
	j.t.Helper()
	_, ended := fmt.Fprintln(j.input, rows)
	last := ""
	timer := time.AfterFunc(harness.Slowly(judgePatience), func() { _ = j.kill() }) // it may have ended
	defer timer.Stop()
	for j.output.Scan() {
		last = j.output.Text()
	}
	if err := errors.Join(j.wait(), ended); err != nil {
		if text, _ := os.ReadFile(j.log); strings.Contains(string(text), clientPanic) && strings.Contains(string(text), "client/v3.(*watchGRPCStream)") {
			return verdict{Inconclusive: "etcd's client has panicked"}
		}
		j.t.Fatalf("judge: %v", err)
	}
	var v verdict
	if err := json.Unmarshal([]byte(last), &v); err != nil {
		j.t.Fatalf("read verdict: %v: %s", err, last)
	}
	return v
}

// run runs the traffic on a target, with the faults that a seed chooses.
func run(t *testing.T, program string, on *target, seed uint64) verdict {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	j := startJudge(t, program, on, seed)
	time.Sleep(between(random, time.Second, 2*time.Second))
	nemeses := slices.DeleteFunc(slices.Clone(on.nemeses), func(n nemesis) bool { return !strings.Contains(n.name, os.Getenv("NEMESIS")) })
	if len(nemeses) == 0 {
		time.Sleep(quiet)
		return j.end(on.rows)
	}
	for range nemesesPerRun {
		chosen := nemeses[random.IntN(len(nemeses))]
		began := time.Now()
		chosen.make(random)
		on.revive()
		t.Logf("seed %d: %s, %s", seed, chosen.name, time.Since(began).Round(time.Millisecond))
		time.Sleep(between(random, 500*time.Millisecond, 2*time.Second))
	}
	return j.end(on.rows)
}

// between draws a duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}
