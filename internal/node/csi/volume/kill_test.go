package volume

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// victim tells a process that the test starts which deed to do, and after which step to be killed.
const victim = "KEDGE_TEST_VICTIM"

const victimSize = 32 * mebibyte

// deeds are the operations that are interrupted. Each begins with the volume `source`, mounted in a
// pod, and the plain directory `plain`. Repeated after an interruption at any step, it must succeed.
var deeds = map[string]struct {
	before, do func(ctx context.Context, s *Store) error
}{
	"create": {do: func(ctx context.Context, s *Store) error {
		_, err := s.Create(ctx, "new", Spec{Size: victimSize})
		return err
	}},
	"create a directory": {do: func(ctx context.Context, s *Store) error {
		_, err := s.Create(ctx, "new", Spec{Unlimited: true})
		return err
	}},
	"snapshot": {do: func(ctx context.Context, s *Store) error {
		_, err := s.Snapshot(ctx, "new", "source")
		return err
	}},
	"snapshot of a directory": {do: func(ctx context.Context, s *Store) error {
		_, err := s.Snapshot(ctx, "new", "plain")
		return err
	}},
	"clone": {do: func(ctx context.Context, s *Store) error {
		_, err := s.Create(ctx, "new", Spec{Size: 2 * victimSize, Source: "source"})
		return err
	}},
	"delete": {before: createNew, do: func(ctx context.Context, s *Store) error {
		return s.Delete(ctx, "new", false)
	}},
	"stage": {before: createNew, do: stageNew},
	"stage a device": {before: func(ctx context.Context, s *Store) error {
		_, err := s.Create(ctx, "new", Spec{Size: victimSize, Block: true})
		return err
	}, do: stageNew},
	"stage again":            {before: createStaged, do: stageNew},
	"delete what is mounted": {before: createStaged, do: func(ctx context.Context, s *Store) error { return s.Delete(ctx, "new", false) }},
	"unstage":                {before: createStaged, do: func(_ context.Context, s *Store) error { return s.Unstage("new", s.node+"/new") }},
	"expand":                 {before: createNew, do: expandNew(2 * victimSize)},
	// The volume has xfs, because not every host may grow a mounted ext4.
	"expand while mounted": {before: func(ctx context.Context, s *Store) error {
		if _, err := s.Create(ctx, "new", Spec{Size: MinXFS, FSType: "xfs"}); err != nil {
			return err
		}
		return stageNew(ctx, s)
	}, do: func(ctx context.Context, s *Store) error {
		if err := expandNew(2*MinXFS)(ctx, s); err != nil {
			return err
		}
		usage, err := s.Usage("new", s.node+"/new")
		if err == nil && usage.Total < MinXFS*3/2 {
			err = fmt.Errorf("its file system is of %d bytes", usage.Total)
		}
		return err
	}},
	"export": {do: func(ctx context.Context, s *Store) error { return s.Export(ctx, "source", io.Discard, directly) }},
	"import": {do: func(ctx context.Context, s *Store) error {
		if _, err := s.Import(ctx, "new", Content{Size: victimSize}, exported()); err != nil {
			return err
		}
		if err := stageNew(ctx, s); err != nil {
			return err
		}
		text, err := os.ReadFile(s.node + "/new/data/file")
		if err == nil && string(text) != "back" {
			err = fmt.Errorf("its file has %q", text)
		}
		return err
	}},
}

func createNew(ctx context.Context, s *Store) error {
	_, err := s.Create(ctx, "new", Spec{Size: victimSize})
	return err
}

func createStaged(ctx context.Context, s *Store) error {
	if err := createNew(ctx, s); err != nil {
		return err
	}
	return stageNew(ctx, s)
}

func expandNew(size int64) func(context.Context, *Store) error {
	return func(_ context.Context, s *Store) error {
		_, err := s.Expand("new", size, 0)
		return err
	}
}

func stageNew(_ context.Context, s *Store) error { return s.Stage("new", s.node+"/new", nil) }

// TestKilled kills a process after each step of each deed, and repeats the deed.
func TestKilled(t *testing.T) {
	if os.Getenv(victim) != "" {
		die(t)
		return
	}
	for name, deed := range deeds {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.base = filepath.Join(disk(t, "ext4", 1200*mebibyte), "storage")
			create(t, s, "source", Spec{Size: victimSize})
			path := use(t, s, "source")
			create(t, s, "plain", Spec{Unlimited: true})
			write(t, s.base+"/plain/data/file", "plain")
			room, err := s.Room(Spec{Unlimited: true})
			must(t, err)
			for step := 1; ; step++ {
				if deed.before != nil {
					must(t, deed.before(t.Context(), s))
				}
				again := exec.Command("/proc/self/exe", "-test.run=^TestKilled$")
				again.Env = append(os.Environ(), strings.Join([]string{victim + "=" + name, strconv.Itoa(step), s.base, s.node}, ","))
				output, err := again.CombinedOutput()
				if status, ok := again.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() && err != nil {
					t.Fatalf("run the step that is killed: %v\n%s", err, output)
				}
				fresh := NewStore(s.base, s.node)
				must(t, fresh.Thaw())
				must(t, fresh.Recover(t.Context()))
				if left, err := fresh.Leftovers(); err != nil || len(left) > 0 {
					t.Errorf("killed after step %d: got leftovers %v, %v, want none", step, left, err)
				}
				write(t, path+"/file", "not frozen")
				must(t, deed.do(t.Context(), fresh))
				must(t, fresh.Unstage("new", s.node+"/new"))
				for _, snapshot := range []bool{false, true} {
					must(t, fresh.Delete(t.Context(), "new", snapshot))
				}
				checkGone(t, s, step)
				if err == nil {
					break // the deed ended before this step
				}
			}
			if now, err := s.Room(Spec{Unlimited: true}); err != nil || now < room-mebibyte*4 {
				t.Errorf("got room for %d, %v, want about %d, as before", now, err, room)
			}
		})
	}
}

// die does the victim's deed.
func die(t *testing.T) {
	parts := strings.Split(os.Getenv(victim), ",")
	s := NewStore(parts[2], parts[3])
	left, err := strconv.Atoi(parts[1])
	must(t, err)
	s.onStep = func(string) {
		if left--; left == 0 {
			must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {}
		}
	}
	must(t, deeds[parts[0]].do(t.Context(), s))
}

// checkGone fails the test if there are files or loop devices of the volume `new`.
func checkGone(t *testing.T, s *Store, step int) {
	t.Helper()
	for _, pattern := range []string{"*", recordFolder + "/*", recordFolder + "/.*"} {
		found, err := filepath.Glob(filepath.Join(s.base, pattern))
		must(t, err)
		for _, path := range found {
			if name := filepath.Base(path); strings.Contains(name, "new") {
				t.Errorf("killed after step %d: %s was not removed", step, path)
			}
		}
	}
	if left := loopsBelow(t, s.base+"/new"); len(left) > 0 {
		t.Errorf("killed after step %d: the loop devices %v were not removed", step, left)
	}
}
