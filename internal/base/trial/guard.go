package trial

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// guardVariable has the file of the Record, for a process that is to be the Guard.
const guardVariable = "KEDGE_UPGRADE_GUARD"

// notifyVariable leads to systemd, which listens to the main process of a service only. That is
// the Guard. It has told systemd long ago that the service is ready.
const notifyVariable = "NOTIFY_SOCKET"

// These are the times of a Guard.
const (
	// Patience is how long a new executable may take until another of its components is ready, and
	// after the last one until its Node is. A slow machine needs longer for the whole start. Steady
	// is how long it must have been ready without a break.
	Patience = 5 * time.Minute
	Steady   = 30 * time.Second
	// StopPatience is how long it may take to stop. kedge itself gives up earlier.
	StopPatience = time.Minute
	// leftPatience is how long something else may hold the pipe open after the end of the new
	// executable.
	leftPatience = time.Second
)

// maxExplanation is how many bytes of what a new executable says about its failure are kept.
const maxExplanation = 2 << 10

// Guarding returns the variable with which the next process is the Guard.
func Guarding(file string) string { return guardVariable + "=" + file }

// ToGuard returns the file of the Record if this process is to be the Guard, and "" otherwise.
// Processes that this one starts do not inherit it.
func ToGuard() string {
	file := os.Getenv(guardVariable)
	os.Unsetenv(guardVariable)
	return file
}

// Guard is a process of the installed executable that runs a new one on trial.
type Guard struct {
	// Record is the file of the Record.
	Record string
	// Installed is the path of the installed executable. Own leads to the one of this process,
	// whatever has become of its path.
	Installed, Own string
	// Args and Environment are those of this process, and of the new executable.
	Args, Environment []string
	// Patience, Steady and StopPatience are the constants with these names.
	Patience, Steady, StopPatience time.Duration
	// Hangups receives the SIGHUPs of this process, which are for the new executable.
	Hangups <-chan os.Signal
	// Say tells an administrator what happens.
	Say func(message string)

	// step is called before each step by tests.
	step func(name string)
}

// Run tries the new executable. When it returns, the new one does not run any more, and what is
// to run is at the path Installed. If ctx ends before that, as for a service that is to stop,
// Run stops the new executable, and the trial counts as interrupted.
func (g *Guard) Run(ctx context.Context) error {
	record, err := Read(g.Record)
	if err != nil {
		return err
	}
	if record.Report.Stage != upgrades.Trying {
		return fmt.Errorf("%s is set without a trial", guardVariable)
	}
	candidate := Candidate(g.Installed, record.Order.SHA256)
	g.at("start")
	g.Say(fmt.Sprintf("trying %s: it is installed when it has been ready for %s", record.Order.Version, g.Steady))
	fault := g.try(ctx, candidate, func() error {
		g.at("install")
		if err := g.install(candidate); err != nil {
			return fmt.Errorf("works, but cannot be installed: %w", Explain(err))
		}
		g.at("note")
		record = record.at(upgrades.Upgraded, "")
		// If this cannot be noted, the digest of what is installed says the same.
		if err := record.write(g.Record); err != nil {
			g.Say(err.Error())
		}
		g.at("end")
		return nil
	})
	switch {
	case record.Report.Stage == upgrades.Upgraded:
		g.Say(fmt.Sprintf("%s has proven itself, and is installed", record.Order.Version))
		return nil
	case ctx.Err() != nil:
		return nil
	}
	g.at("fail")
	record = record.at(upgrades.Failed, fmt.Sprintf("the node went back to the kedge from before: %s %v", record.Order.Version, fault))
	g.Say(record.Report.Message)
	err = errors.Join(record.write(g.Record), os.Remove(candidate))
	g.at("back")
	return err
}

func (g *Guard) at(step string) {
	if g.step != nil {
		g.step(step)
	}
}

// try runs the new executable, calls install if it proves itself, and ends it. The error says
// why it did not.
func (g *Guard) try(ctx context.Context, candidate string, install func() error) error {
	// The kernel kills the child when the thread that has started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := g.begin(candidate)
	if err != nil {
		return fmt.Errorf("cannot be started: %w", err)
	}
	g.at("run")
	var (
		began    = time.Now()
		patience = time.NewTimer(g.Patience)
		expired  = false
		// passed are the stages of the start that it was seen in.
		passed = map[string]bool{}
		// steady receives when it has been ready for long enough. It is nil while it is not ready.
		steady <-chan time.Time
		waits  = "its start"
		why    explanation
	)
	defer patience.Stop()
	for {
		select {
		case line := <-c.lines:
			switch what, waiting := strings.CutPrefix(line, waitingStart); {
			case line == readyLine:
				g.at("ready")
				steady = time.After(g.Steady)
			case waiting:
				steady, waits = nil, what
				if stage := stageOf(what); !passed[stage] {
					passed[stage] = true
					patience.Reset(g.Patience)
				}
			default:
				why.add(line)
			}
		case <-steady:
			err := install()
			g.end(c)
			return err
		case <-patience.C:
			expired = true
		case signal := <-g.Hangups:
			_ = c.process.Signal(signal)
		case <-ctx.Done():
			g.end(c)
			return ctx.Err()
		case state := <-c.ended:
			return why.error(fmt.Errorf("ended after %s (%v)", time.Since(began).Round(time.Second), state))
		}
		if expired && steady == nil {
			g.end(c)
			return why.error(fmt.Errorf("has made no progress for %s, and was waiting for %s", g.Patience, waits))
		}
	}
}

// stageOf returns the stage of a start from what a Child waits for: the components, each of which
// becomes ready once. Then it is the Node, whose condition is told in words, and can change for ever.
func stageOf(waits string) string {
	if strings.Contains(strings.ReplaceAll(waits, ", ", ","), " ") {
		return "Node"
	}
	return waits
}

// child is a new executable that runs.
type child struct {
	process *os.Process
	// lines are what it says. ended receives when it has ended, and said everything.
	lines <-chan string
	ended <-chan *os.ProcessState
}

// begin starts the new executable.
func (g *Guard) begin(candidate string) (*child, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	command := &exec.Cmd{
		Path: candidate, Args: g.Args, ExtraFiles: []*os.File{write},
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: append(slices.DeleteFunc(slices.Clone(g.Environment), func(variable string) bool {
			return strings.HasPrefix(variable, notifyVariable+"=")
		}), childVariable+"=3"),
		// Not in the group of this process, so that Ctrl-C comes to it once.
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
	}
	if err := command.Start(); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	lines, ended, all := make(chan string), make(chan *os.ProcessState, 1), make(chan struct{})
	go func() {
		defer close(all)
		defer read.Close()
		for reader := bufio.NewReader(read); ; {
			// A long line comes in parts.
			line, _, err := reader.ReadLine()
			if err != nil {
				return
			}
			lines <- string(line)
		}
	}()
	go func() {
		_ = command.Wait() // the state says more than the error
		_ = read.SetReadDeadline(time.Now().Add(leftPatience))
		<-all
		ended <- command.ProcessState
	}()
	return &child{command.Process, lines, ended}, nil
}

// end stops the new executable as a service manager does. Pods keep running.
func (g *Guard) end(c *child) {
	_ = c.process.Signal(syscall.SIGTERM)
	patience := time.After(g.StopPatience)
	for {
		select {
		case <-c.lines: // it must not wait for a reader
		case <-patience:
			g.Say("it does not stop: killing it")
			_ = c.process.Kill()
		case <-c.ended:
			return
		}
	}
}

// install puts the new executable in the place of the installed one.
func (g *Guard) install(candidate string) error {
	own, err := os.Stat(g.Own)
	if err != nil {
		return err
	}
	installed, err := os.Stat(g.Installed)
	if err != nil {
		return err
	}
	if !os.SameFile(own, installed) {
		return fmt.Errorf("somebody has put another executable at %s meanwhile", g.Installed)
	}
	if err := datadir.Sync(candidate); err != nil {
		return err
	}
	if err := os.Rename(candidate, g.Installed); err != nil {
		return err
	}
	if err := datadir.SyncFolder(filepath.Dir(g.Installed)); err != nil {
		g.Say(err.Error())
	}
	return nil
}

// explanation is what a new executable says about its failure. The first lines say most.
type explanation struct{ text strings.Builder }

func (e *explanation) add(line string) {
	if e.text.Len() < maxExplanation {
		_, _ = io.WriteString(&e.text, "\n"+line)
	}
}

// error adds the explanation to an error.
func (e *explanation) error(err error) error {
	if e.text.Len() == 0 {
		return fmt.Errorf("%w. The log of kedge may say more", err)
	}
	return fmt.Errorf("%w:%s", err, e.text.String())
}
