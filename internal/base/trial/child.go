package trial

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// childVariable has the number of the file descriptor of the pipe to the Guard.
const childVariable = "KEDGE_UPGRADE_TRIAL"

// What a Child says, in a line of its own. Everything else is about its failure.
const (
	readyLine    = "ready"
	waitingStart = "waiting for "
)

// Child is a new executable that runs on trial. All methods can be called on nil, which is a
// kedge that is not on trial.
type Child struct {
	pipe *os.File

	mu sync.Mutex
	// starting are the components that are not ready. all says that each one was.
	starting []string
	all      bool
	// node is why the Node is not ready, empty if it is.
	node string
	// said is the last line about that.
	said string
}

// FromEnvironment returns the Child that this process is, or nil. Processes that this one
// starts do not inherit it.
func FromEnvironment() *Child {
	text := os.Getenv(childVariable)
	os.Unsetenv(childVariable)
	fd, err := strconv.Atoi(text)
	var stat unix.Stat_t
	if err != nil || fd <= 2 || unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil
	}
	unix.CloseOnExec(fd)
	c := &Child{pipe: os.NewFile(uintptr(fd), "guard"), node: "its Node"}
	// A panic in any goroutine. Without this, only the log would have it.
	_ = debug.SetCrashOutput(c.pipe, debug.CrashOptions{})
	return c
}

// Running tells whether this process is a new executable on trial. It must not change data so
// that the kedge from before cannot read them.
func (c *Child) Running() bool { return c != nil }

// Component tells of a change of a component.
func (c *Child) Component(s component.Status) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starting = slices.DeleteFunc(c.starting, func(name string) bool { return name == s.Name })
	if s.State == component.Starting {
		c.starting = append(c.starting, s.Name)
	}
	if s.State == component.Starting || s.State == component.Ready {
		c.say()
	}
}

// Components tells that all components are ready.
func (c *Child) Components() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = true
	c.say()
}

// Node tells that the Node is ready, or else why not.
func (c *Child) Node(fault string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node = fault
	c.say()
}

// say tells the Guard whether this process is ready, if that has changed.
func (c *Child) say() {
	line := readyLine
	switch {
	case !c.all && len(c.starting) == 0:
		return // between two components
	case !c.all:
		line = waitingStart + strings.Join(c.starting, ", ")
	case c.node != "":
		line = waitingStart + oneLine(c.node)
	}
	if line != c.said {
		c.said = line
		fmt.Fprintln(c.pipe, line)
	}
}

// Explain tells why this process ends.
func (c *Child) Explain(err error) {
	if c != nil && err != nil {
		fmt.Fprintln(c.pipe, err)
	}
}

// Inherit lets the process that this one is about to execute be the Child. It returns what that
// has to find in its environment.
func (c *Child) Inherit() []string {
	if c == nil {
		return nil
	}
	fd := c.pipe.Fd()
	if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
		return nil
	}
	return []string{fmt.Sprintf("%s=%d", childVariable, fd)}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
