package bench

import (
	"errors"
	"testing"
	"time"
)

// measureStart starts a system cold, with nothing else running.
func measureStart(t *testing.T, r *report, system string) result {
	i := newInstallation(t, r, system, 0)
	times, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t))
	if err != nil {
		t.Fatal(err)
	}
	return result{System: system, Start: times}
}

// measureRun measures what follows the cold start, and adds it to runs, which has one result of
// each system. The idle systems are watched at the same time, so that both see the same state of
// the machine. Each system is started warm while the others are stopped.
func measureRun(t *testing.T, r *report, runs []result) {
	installations := make([]*installation, len(runs))
	for n, run := range runs {
		i := newInstallation(t, r, run.System, 0)
		installations[n] = i
		if _, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(r.Options.Settle)
	measured := make(chan error)
	for n, i := range installations {
		go func() { measured <- runs[n].measureIdle(i.ctx, i, r.Options.Idle) }()
	}
	var err error
	for range runs {
		err = errors.Join(err, <-measured)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range installations {
		i.stop()
	}
	for n, i := range installations {
		if runs[n].Warm, err = i.startAgain(); err != nil {
			t.Fatal(err)
		}
		i.stop()
	}
}
