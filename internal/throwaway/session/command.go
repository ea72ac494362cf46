package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

// signals are those that this process gets while it has a cluster.
type signals struct {
	// caught has all signals, and received has them once the cluster is there.
	caught, received chan os.Signal
}

// catchSignals keeps signals from ending this process.
func catchSignals() *signals {
	s := &signals{caught: make(chan os.Signal, 16), received: make(chan os.Signal, 16)}
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2} {
		// nohup starts this process so that it ignores a signal. The command then ignores the signal, too.
		if !signal.Ignored(sig) {
			signal.Notify(s.caught, sig)
		}
	}
	return s
}

// inForeground tells whether the terminal sends its signals to this process, and to the command, too. The standard
// input may be something else, and the user may move a job to the foreground at any time.
func inForeground() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func (s *signals) stop() {
	signal.Stop(s.caught)
	close(s.caught)
}

// context returns a context that ends with the first signal that usually ends a process. It is called once.
func (s *signals) context(ctx context.Context) context.Context {
	// main ends ctx with the same signals, without a reason.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		for signal := range s.caught {
			if signal != unix.SIGUSR1 && signal != unix.SIGUSR2 {
				cancel(fmt.Errorf("interrupted (%v) before the command was started", signal))
			}
			select {
			case s.received <- signal:
			default: // The command does not run yet, or not any more.
			}
		}
	}()
	return ctx
}

// command runs the user's command, and passes signals on to it.
func (o *Options) command(s *signals, process *keeper.Process, ready keeper.Report) (status int, err error) {
	began := time.Now()
	defer func() { o.Progress("command", time.Since(began)) }()
	cmd := exec.Command(o.Command[0], o.Command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = environment(ready.Kubeconfig)
	// If this process is killed, the command has no cluster any more, and must not go on. The kernel looks
	// at the thread that has started the command: it must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM}
	if err := cmd.Start(); err != nil {
		return notStarted(err), fmt.Errorf("start the command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case received := <-s.received:
			if (received == unix.SIGINT || received == unix.SIGQUIT) && inForeground() {
				continue // The terminal has sent it to the command as well.
			}
			_ = cmd.Process.Signal(received)
		case fault := <-process.Failed():
			o.Note(fmt.Sprintf("the command still runs, but its cluster has failed: %v", fault))
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 1, fmt.Errorf("run the command: %w", err)
			}
			return exitStatus(cmd.ProcessState), nil
		}
	}
}

// exitStatus returns the exit status of a process as shells do: 128 and the number of a signal.
func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// notStarted returns the exit status that shells give to a command that they cannot start.
func notStarted(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}
