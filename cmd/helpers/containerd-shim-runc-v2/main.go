// Command containerd-shim-runc-v2 is containerd's shim, of which every pod has
// one, with as little memory as it can do with.
package main

import (
	"context"
	"os"
	"runtime"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin"
	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	// Upstream's starts itself with GOMAXPROCS=4, whatever the machine has
	// (manager/manager_linux.go, newCommand). A shim waits; with one it takes
	// 3.5 MB instead of 4.2, and 8 threads instead of 12.
	runtime.GOMAXPROCS(1)
	restoreTimers()
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}

// restoreTimers makes timers as exact as the kernel's default, here and so in
// containers: kedge's own may be late, and who is started has that of it.
func restoreTimers() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, thread := range threads {
		// What fails is a thread that has ended, or a kernel that has not this.
		_ = os.WriteFile("/proc/"+thread.Name()+"/timerslack_ns", []byte("50000"), 0)
	}
}
