package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// errHalted says that nothing can be done on a host any more.
var errHalted = errors.New("the host has been halted")

// Host is what a kedge takes for a machine. It runs from Start to Halt.
type Host struct {
	setup Setup
	// init is nil for a host that another process has started.
	init *exec.Cmd
	pid  int
	ns   netns.NsHandle
	work chan func()
	// halted is closed when no more work is taken, and stopped when the thread has left the host.
	halted, stopped chan struct{}

	mutex    sync.Mutex
	commands []*Cmd
	halting  sync.Once
}

// Start starts a host. The executable that calls Start is started once more as the host's first process. The host
// has no link to any network yet.
func Start(setup Setup) (*Host, error) {
	h := &Host{setup: setup}
	return h.begin(h.start)
}

// Enter returns a host that another process has started, by the ID of the host's first process. Leave it
// with Halt, which does not end the host.
func Enter(pid int) (*Host, error) {
	h := &Host{pid: pid}
	return h.begin(h.enter)
}

func (h *Host) begin(arrive func() error) (*Host, error) {
	h.work, h.halted, h.stopped = make(chan func()), make(chan struct{}), make(chan struct{})
	started := make(chan error)
	go h.live(arrive, started)
	if err := <-started; err != nil {
		h.Halt()
		return nil, err
	}
	return h, nil
}

// live calls arrive, which starts the host's first process or finds it, and then is the one thread in the
// host's namespaces, which runs the functions that Do passes. The kernel kills a process together with the thread that started
// it (Pdeathsig), so this thread must not end before the host does. Nobody else may use it
// afterwards.
func (h *Host) live(arrive func() error, started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The process's first thread never ends, and would stay in the host's namespaces and
		// cgroup. While it is locked here, the new goroutine gets another thread.
		defer runtime.UnlockOSThread()
		go h.live(arrive, started)
		<-h.stopped
		return
	}
	defer close(h.stopped)
	started <- arrive()
	for {
		select {
		case f := <-h.work:
			f()
		case <-h.halted:
			return
		}
	}
}

func (h *Host) start() error {
	report, reporter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	if h.init, err = h.setup.firstProcess(reporter); err != nil {
		reporter.Close()
		return err
	}
	h.init.Stderr = os.Stderr
	h.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	err = h.init.Start()
	reporter.Close()
	if err != nil {
		h.init = nil
		return fmt.Errorf("start first process: %w", err)
	}
	answer, err := io.ReadAll(report)
	if err != nil || string(answer) != "ok" {
		return errors.Join(errors.New("set up: "+string(answer)), err)
	}
	h.pid = h.init.Process.Pid
	return h.enter()
}

// enter moves the calling thread into the namespaces of the host's first process.
func (h *Host) enter() (err error) {
	if h.ns, err = netns.GetFromPid(h.pid); err != nil {
		return fmt.Errorf("find the host: %w", err)
	}
	// A thread that shares its working directory cannot change the mount namespace: setns(2).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	var namespaces []*os.File
	for _, name := range []string{"ipc", "uts", "net", "pid", "mnt"} {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", h.pid, name))
		if err != nil {
			return err
		}
		defer file.Close()
		namespaces = append(namespaces, file)
	}
	for _, file := range namespaces {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return fmt.Errorf("enter %s: %w", file.Name(), err)
		}
	}
	return nil
}

// Do runs f on the thread that is in the host. f must not start goroutines that do anything on the
// host, because they would run outside. After Halt, Do does nothing and returns errHalted.
func (h *Host) Do(f func()) error {
	done := make(chan struct{})
	work := func() {
		defer close(done)
		f()
	}
	select {
	case h.work <- work:
		<-done
		return nil
	case <-h.halted:
		return errHalted
	}
}

// Halt kills everything on the host, as a power cut does. The kernel then removes the host's mounts and
// interfaces.
func (h *Host) Halt() { h.halting.Do(h.halt) }

func (h *Host) halt() {
	h.mutex.Lock()
	commands := h.commands
	h.commands = nil
	h.mutex.Unlock()
	if h.init != nil {
		_ = h.init.Process.Kill()
		// The kernel ends a PID namespace when all its processes have been waited for.
		for _, c := range commands {
			_ = c.Wait()
		}
		_ = h.init.Wait()
	}
	close(h.halted)
	<-h.stopped
	if h.ns > 0 {
		h.ns.Close()
	}
}

// NS returns the host's network namespace. It is valid until Halt.
func (h *Host) NS() netns.NsHandle { return h.ns }

// FirstProcess returns the ID of the host's first process on the machine.
func (h *Host) FirstProcess() int { return h.pid }

// Path returns the path by which the machine can reach the file path of the host.
func (h *Host) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", h.pid), path)
}

// DialContext connects from the host. The address must have an IP address: a name would be resolved on
// the machine.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	// A socket stays in the namespace in which it was made. Each call has its own thread, so that a
	// slow connect does not delay others.
	err := Within(h.ns, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Cmd is an exec.Cmd whose process starts on a host.
type Cmd struct {
	*exec.Cmd
	host    *Host
	waiting sync.Once
	result  error
}

// Command returns a command that runs on the host. Its working folder is /, and its environment is empty.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := &Cmd{host: h, Cmd: exec.CommandContext(ctx, name, args...)}
	c.Env = []string{}
	return c
}

// Start starts the command. It fails if the host has been halted.
func (c *Cmd) Start() (err error) {
	if halted := c.host.Do(func() { err = c.Cmd.Start() }); halted != nil {
		return halted
	}
	if err == nil {
		c.host.mutex.Lock()
		c.host.commands = append(c.host.commands, c)
		c.host.mutex.Unlock()
	}
	return err
}

// Wait waits until the command has ended. Unlike exec.Cmd's Wait it may be called several times.
func (c *Cmd) Wait() error {
	c.waiting.Do(func() { c.result = c.Cmd.Wait() })
	return c.result
}
