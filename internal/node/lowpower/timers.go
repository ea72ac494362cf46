package lowpower

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const (
	// kernelSlack is how late the kernel lets any process's timers be.
	kernelSlack = 50 * time.Microsecond
	// restingSlack halves the processor time of a server at rest; twice as much
	// saves hardly more. Nobody waits for a timer of kedge that exactly.
	restingSlack = 20 * time.Millisecond
)

// setTimerSlack lets the timers of this process be late by slack. It is a
// property of threads, which new ones have from the thread that makes them, and
// new processes too: the shim takes it back for what runs in containers
// (cmd/helpers/containerd-shim-runc-v2).
func setTimerSlack(slack time.Duration) error {
	value := []byte(strconv.FormatInt(slack.Nanoseconds(), 10))
	var done []string
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		more := false
		for _, thread := range threads {
			if slices.Contains(done, thread.Name()) {
				continue
			}
			more, done = true, append(done, thread.Name())
			err := os.WriteFile(filepath.Join("/proc", thread.Name(), "timerslack_ns"), value, 0)
			if err != nil && !threadEnded(thread.Name()) {
				return fmt.Errorf("set timer slack: %w", err)
			}
		}
		if !more {
			return nil
		}
	}
}

func threadEnded(id string) bool {
	_, err := os.Stat(filepath.Join("/proc/self/task", id))
	return os.IsNotExist(err)
}
