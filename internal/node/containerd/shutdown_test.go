package containerd

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestEnd ends a process by its stop signal, and one that ignores the signal.
func TestEnd(t *testing.T) {
	var processes []process
	var commands []*exec.Cmd
	for _, script := range []string{"trap 'exit 7' USR1; echo; while :; do sleep 0.1; done", "trap '' USR1; echo; while :; do sleep 0.1; done"} {
		cmd := exec.Command("sh", "-c", script)
		output, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It has its handler now.
		if _, err := output.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		processes, commands = append(processes, process{pidfd, unix.SIGUSR1, time.Second}), append(commands, cmd)
	}
	// The first one may take as long as it needs.
	processes[0].grace = time.Minute
	endAll(processes)
	_ = commands[0].Wait()
	_ = commands[1].Wait()
	if status := commands[0].ProcessState.ExitCode(); status != 7 {
		t.Errorf("the process with a handler ended with %v", commands[0].ProcessState)
	}
	if status := commands[1].ProcessState.Sys().(interface{ Signal() unix.Signal }).Signal(); status != unix.SIGKILL {
		t.Errorf("the process that ignores the signal ended with %v", commands[1].ProcessState)
	}
}

func TestGraceOf(t *testing.T) {
	for grace, want := range map[string]time.Duration{"": shutdownPatience, "3": 3 * time.Second, "0": 0, "3600": shutdownPatience} {
		if got := graceOf(&cri.Container{Annotations: map[string]string{graceAnnotation: grace}}); got != want {
			t.Errorf("%q: got %s, want %s", grace, got, want)
		}
	}
}
