package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
)

// newProcess returns a keeper that is not there, and what it would report with.
func newProcess() (*Process, func(Report), io.Closer) {
	reader, writer := io.Pipe()
	p := &Process{cmd: &exec.Cmd{Process: &os.Process{Pid: 4711}}, reports: bufio.NewScanner(reader), failed: make(chan error, 1)}
	encoder := json.NewEncoder(writer)
	return p, func(r Report) { _ = encoder.Encode(r) }, writer
}

// TestFailedStart wants the name and the logs of a cluster that does not get ready.
func TestFailedStart(t *testing.T) {
	p, report, _ := newProcess()
	go func() {
		report(Report{Name: "one", Logs: "/logs"})
		report(Report{Step: "machine"})
		report(Report{Error: "no luck"})
	}()
	var steps []string
	started, err := p.WaitReady(t.Context(), func(r Report) { steps = append(steps, r.Step) })
	if err == nil || err.Error() != "no luck" || started.Name != "one" || started.Logs != "/logs" || len(steps) != 1 {
		t.Errorf("got %+v, %v, steps %q", started, err, steps)
	}

	t.Log("the time is up while the cluster starts")
	p, report, _ = newProcess()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		report(Report{Name: "two", Logs: "/logs"})
		report(Report{Step: "machine"})
	}()
	started, err = p.WaitReady(ctx, func(Report) { cancel(errors.New("too late")) })
	if err == nil || err.Error() != "too late" || started.Name != "two" {
		t.Errorf("got %+v, %v", started, err)
	}
}

// TestFailed wants to be told if a cluster that was ready fails, or its keeper is killed.
func TestFailed(t *testing.T) {
	for name, test := range map[string]struct {
		then func(report func(Report), pipe io.Closer)
		want string
	}{
		"the server ends":      {func(report func(Report), _ io.Closer) { report(Report{Error: "the API server ended"}) }, "the API server ended"},
		"the keeper is killed": {func(_ func(Report), pipe io.Closer) { pipe.Close() }, "process 4711"},
	} {
		t.Run(name, func(t *testing.T) {
			p, report, pipe := newProcess()
			go func() {
				report(Report{Ready: true, Name: "one"})
				test.then(report, pipe)
			}()
			if ready, err := p.WaitReady(t.Context(), func(Report) {}); err != nil || ready.Name != "one" {
				t.Fatalf("got %+v, %v", ready, err)
			}
			if err := <-p.Failed(); !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestUntilSeen wants a cluster in memory to stay after a fault until ctx ends. Other clusters must not wait.
func TestUntilSeen(t *testing.T) {
	fault := errors.New("no luck")
	for _, temporary := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		var reported string
		k := &keeper{Held: &clusters.Held{Cluster: clusters.Cluster{Temporary: temporary}}, report: func(r Report) {
			reported = r.Error
			cancel() // as Stop does when the logs are gathered
		}}
		if err := k.untilSeen(ctx, fault); err != fault || temporary != (reported != "") {
			t.Errorf("temporary %t: got %v, reported %q", temporary, err, reported)
		}
		if temporary != (ctx.Err() != nil) {
			t.Errorf("temporary %t: the cluster went before somebody could look at it", temporary)
		}
		cancel()
	}
	if err := new(keeper).untilSeen(t.Context(), nil); err != nil {
		t.Errorf("without a fault: %v", err)
	}
}
