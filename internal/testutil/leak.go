// Package testutil is what tests of several packages share: fakes and leak
// checks. Nothing but tests imports it.
package testutil

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// leakPatience is how long what is ending may take to end before it counts as
// leaked.
const leakPatience = 10 * time.Second

// CheckLeaks makes the test fail if goroutines or sockets are there at its end
// that were not there when CheckLeaks was called. Call it first.
func CheckLeaks(t testing.TB) {
	t.Helper()
	goroutines, sockets := allGoroutines(), allSockets()
	t.Cleanup(func() {
		var leaked []string
		for deadline := time.Now().Add(leakPatience); ; time.Sleep(10 * time.Millisecond) {
			leaked = append(added(goroutines, allGoroutines()), added(sockets, allSockets())...)
			if len(leaked) == 0 || time.Now().After(deadline) {
				break
			}
		}
		for _, leak := range leaked {
			t.Errorf("leaked %s", leak)
		}
	})
}

// added returns the values of after whose keys are not in before.
func added(before, after map[string]string) []string {
	var all []string
	for key, value := range after {
		if _, ok := before[key]; !ok {
			all = append(all, value)
		}
	}
	return all
}

// allGoroutines returns the stacks of all goroutines but the calling one, by
// "goroutine N".
func allGoroutines() map[string]string {
	buffer := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buffer, true)
		if n < len(buffer) {
			buffer = buffer[:n]
			break
		}
		buffer = make([]byte, 2*len(buffer))
	}
	all := map[string]string{}
	stacks := strings.Split(string(buffer), "\n\n")
	for _, stack := range stacks[1:] {
		id, _, _ := strings.Cut(stack, " [")
		all[id] = stack
	}
	return all
}

// allSockets returns the sockets this process has open.
func allSockets() map[string]string {
	all := map[string]string{}
	descriptors, _ := filepath.Glob("/proc/self/fd/*")
	for _, descriptor := range descriptors {
		if link, err := os.Readlink(descriptor); err == nil && strings.HasPrefix(link, "socket:") {
			all[link] = link
		}
	}
	return all
}
