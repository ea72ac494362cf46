package hosts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
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
		return Explain(fmt.Errorf("start first process: %w", err))
	}
	answer, err := io.ReadAll(report)
	if err != nil || string(answer) != "ok" {
		_ = p.init.Process.Kill()
		_ = p.init.Wait()
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		return explainSetup(errors.Join(errors.New("set up: "+string(answer)), err), os.Geteuid(), string(mounts))
	}
	return nil
}

// Explain adds what to do to a fault of making namespaces, if this user is not root.
func Explain(err error) error { return explain(err, os.Geteuid()) }

func explain(err error, user int) error {
	if user != 0 && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EACCES)) {
		return fmt.Errorf("%w: %w", err, ErrUserNamespace)
	}
	return err
}

// explainSetup adds what to do to a fault of the first process of a user without rights. mounts is
// /proc/self/mountinfo. The user could make the namespaces. But the kernel refuses a new /proc if another mount hides a
// part of the present one (mnt_already_visible in fs/namespace.c), and a security module may forbid mounts.
func explainSetup(fault error, user int, mounts string) error {
	if user == 0 {
		return fault
	}
	if hiding := overProc(mounts); len(hiding) > 0 && strings.Contains(fault.Error(), "mount proc ") {
		list := strings.Join(hiding, " ")
		return fmt.Errorf("%w: other mounts hide a part of /proc (%s), and so the kernel lets no user mount another /proc: "+
			"run the command with sudo, or unmount them (sudo umount %s)", fault, list, list)
	}
	return fmt.Errorf("%w: %w", fault, ErrUserNamespace)
}

// overProc returns the mounts that hide a part of /proc. Its folder for binfmt_misc is empty, so a mount there hides
// nothing.
func overProc(mounts string) (hiding []string) {
	for line := range strings.Lines(mounts) {
		// The fields are in proc_pid_mountinfo(5). The fourth is the root of the mount in its file system.
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[4] != "/proc" && !strings.HasPrefix(fields[4], "/proc/") || fields[4] == "/proc/sys/fs/binfmt_misc" {
			continue
		}
		if _, kind, _ := strings.Cut(line, " - "); fields[4] == "/proc" && fields[3] == "/" && strings.HasPrefix(kind, "proc ") {
			continue // /proc itself
		}
		hiding = append(hiding, fields[4])
	}
	slices.Sort(hiding)
	return slices.Compact(hiding)
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
