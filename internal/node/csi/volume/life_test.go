package volume

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// life goes through all operations on a volume. It can be repeated wherever it ended.
func life(ctx context.Context, s *Store) error {
	staging, target := s.node+"/new", s.node+"/new-pod"
	steps := []func() error{
		func() error { return createNew(ctx, s) },
		func() error { return s.Stage("new", staging, nil) },
		func() error { return s.Publish("new", Publication{Target: target}) },
		func() error { return os.WriteFile(target+"/file", []byte("written"), 0o600) },
		func() error { _, err := s.Snapshot(ctx, "new-snap", "new"); return err },
		func() error { return s.Unpublish(target) },
		func() error { return s.Unstage("new", staging) },
		func() error {
			_, err := s.Create(ctx, "new-copy", Spec{Size: 2 * victimSize, Source: "new-snap"})
			return err
		},
		func() error { return s.Stage("new-copy", staging+"-copy", nil) },
		func() error { return s.Unstage("new-copy", staging+"-copy") },
		func() error { return s.Delete(ctx, "new-copy", false) },
		func() error { return s.Delete(ctx, "new-snap", true) },
		func() error { return s.Delete(ctx, "new", false) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// TestKilledAtAnyTime kills a process at a random moment. A program that the process has started may
// keep running.
func TestKilledAtAnyTime(t *testing.T) {
	if os.Getenv(victim) != "" {
		parts := strings.Split(os.Getenv(victim), ",")
		s := NewStore(parts[0], parts[1])
		for {
			must(t, life(t.Context(), s))
		}
	}
	s := newStore(t)
	s.base = filepath.Join(disk(t, "ext4", 400*mebibyte), "storage")
	must(t, os.MkdirAll(s.node, 0o700))
	for round := range 15 {
		again := exec.Command("/proc/self/exe", "-test.run=^TestKilledAtAnyTime$")
		again.Env = append(os.Environ(), victim+"="+s.base+","+s.node)
		var said strings.Builder
		again.Stdout = &said
		must(t, again.Start())
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		must(t, again.Process.Kill())
		_ = again.Wait()
		if strings.Contains(said.String(), "FAIL") {
			t.Fatal(said.String())
		}
		fresh := NewStore(s.base, s.node)
		must(t, fresh.Thaw())
		must(t, fresh.Recover(t.Context()))
		// A program that still runs keeps the device for a moment, so the caller tries again.
		err := life(t.Context(), fresh)
		for deadline := time.Now().Add(20 * time.Second); err != nil && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			err = life(t.Context(), fresh)
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if left, err := fresh.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("round %d: leftovers %v, %v", round, left, err)
		}
		checkGone(t, s, round)
	}
}
