package hosts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is a program with files and processes of its own, and the machine's network. Unlike hosts, users
// other than root can have programs, where the kernel lets them make user namespaces.
type Program struct {
	init *exec.Cmd
	// ended is closed when nothing of the program runs any more.
	ended chan struct{}
	err   error
}

// ErrUserNamespace says that a user without rights may not make namespaces on this machine.
var ErrUserNamespace = errors.New("this host does not let users make user namespaces: run the command with sudo, or allow them " +
	"(sysctl user.max_user_namespaces, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)")

// StartProgram starts setup.Command. Its output goes to log.
func StartProgram(setup Setup, log *os.File) (*Program, error) {
	p := &Program{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the first process together with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := p.start(setup, log)
		started <- err
		if err == nil {
			p.err = p.init.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Program) start(setup Setup, log *os.File) error {
	report, reporter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	if p.init, err = setup.firstProcess(reporter); err != nil {
		reporter.Close()
		return err
	}
	p.init.Stdout, p.init.Stderr = log, log
	attributes := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	if os.Geteuid() != 0 {
		attributes.Cloneflags |= unix.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	p.init.SysProcAttr = attributes
	err = p.init.Start()
	reporter.Close()
	if err != nil {
		return explain(fmt.Errorf("start first process: %w", err), os.Geteuid())
	}
	answer, err := io.ReadAll(report)
	if err != nil || string(answer) != "ok" {
		_ = p.init.Process.Kill()
		_ = p.init.Wait()
		fault := errors.Join(errors.New("set up: "+string(answer)), err)
		if os.Geteuid() != 0 {
			// Where the kernel lets users make user namespaces, something else may forbid the mounts.
			fault = fmt.Errorf("%w: %w", fault, ErrUserNamespace)
		}
		return fault
	}
	return nil
}

// explain adds what to do to a fault of a user without rights.
func explain(err error, user int) error {
	if user != 0 && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES)) {
		return fmt.Errorf("%w: %w", err, ErrUserNamespace)
	}
	return err
}

// Ended is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Err returns how the program has ended. It is valid after Ended.
func (p *Program) Err() error { return p.err }

// Kill ends the program and everything that it has started.
func (p *Program) Kill() {
	_ = p.init.Process.Kill()
	<-p.ended
}
