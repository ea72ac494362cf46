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
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/main.go main
func main() {
	// Upstream's starts itself with GOMAXPROCS=4, whatever the machine has
	// (manager/manager_linux.go, newCommand). A shim waits; with one it takes
	// 3.5 MB instead of 4.2, and 8 threads instead of 12.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager/manager_linux.go newCommand
	runtime.GOMAXPROCS(1)
	restoreTimers()
	log.L.Logger.AddHook(routine{})
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}

// routine makes debug messages of what a shim says each time that kedge stops: nobody
// hears its events then (github.com/containerd/ttrpc/server.go).
//
//upstream:relies-on github.com/containerd/ttrpc/server.go serverConn.run
type routine struct{}

func (routine) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (routine) Fire(entry *logrus.Entry) error {
	if entry.Message == "failed sending message on channel" {
		entry.Level = logrus.DebugLevel
	}
	return nil
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
