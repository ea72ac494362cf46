// Command containerd-shim-runc-v2 is containerd's shim, made to use as little memory as possible.
// Every pod has a shim.
package main

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/main.go main
func main() {
	// Upstream's shim starts itself with GOMAXPROCS=4 on every machine (manager/manager_linux.go,
	// newCommand). A shim mostly waits. With GOMAXPROCS=1 it takes 3.5 MB instead of 4.2, and 8 threads
	// instead of 12.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager/manager_linux.go newCommand
	runtime.GOMAXPROCS(1)
	restoreTimers()
	log.L.Logger.AddHook(routine{})
	registerTask()
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
}

// routines are the beginnings of errors that are no faults.
var routines = []string{
	// While kedge does not run, nobody receives a shim's events. The shim sends them again, and says so with another
	// message if that does not help.
	//upstream:relies-on github.com/containerd/ttrpc/server.go serverConn.run
	"failed sending message on channel",
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/service.go service.forward service.oomEvent
	"post event",
	//upstream:relies-on github.com/containerd/containerd/v2/pkg/shim/publisher.go RemoteEventsPublisher.processQueue
	"forward event",
	// The answer to a call that was given up.
	//upstream:relies-on github.com/containerd/ttrpc/client.go Client.receiveLoop
	"ttrpc: received message on inactive stream",
	// If kedge stops, or the machine is busy, while a container is deleted, the output of the container may still be on
	// its way. The deletion goes on.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/init.go Init.delete
	"failed to drain init process",
}

// routine makes debug messages of routines.
type routine struct{}

func (routine) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

func (routine) Fire(entry *logrus.Entry) error {
	if slices.ContainsFunc(routines, func(beginning string) bool { return strings.HasPrefix(entry.Message, beginning) }) {
		entry.Level = logrus.DebugLevel
	}
	return nil
}

// restoreTimers sets the timer slack of this process to the kernel's default, and so that of the
// containers that it starts. kedge may set a larger one, which its child processes inherit.
func restoreTimers() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, thread := range threads {
		// A write fails if the thread has ended or the kernel lacks this file.
		_ = os.WriteFile("/proc/"+thread.Name()+"/timerslack_ns", []byte("50000"), 0)
	}
}
