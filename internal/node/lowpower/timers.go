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
	// kernelSlack is the kernel's default: how late the timers of any process may be.
	kernelSlack = 50 * time.Microsecond
	// restingSlack halves the processor time of an idle server. Twice this value saves hardly
	// more. No part of kedge needs timers that are more exact.
	restingSlack = 20 * time.Millisecond
)

// slackOf returns how late timers may be.
func slackOf(late bool) time.Duration {
	if late {
		return restingSlack
	}
	return kernelSlack
}

// setTimerSlack allows the timers of this process to be late by slack. The setting belongs to
// threads. New threads and new processes inherit it from the thread that creates them, so the shim
// resets it for containers (cmd/helpers/containerd-shim-runc-v2).
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
