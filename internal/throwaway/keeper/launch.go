package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
	"github.com/kedge-dev/kedge/internal/throwaway/rootless"
)

// Job is what a keeper is told at its start.
type Job struct {
	Store clusters.Store
	// Cluster is a new cluster. If Existing is true, only its name counts.
	Cluster  clusters.Cluster
	Existing bool
	// Images are the paths of archives with images, which all nodes get before the cluster is ready.
	Images []string
	// Rootless says that the keeper runs in a user namespace of an ordinary user: Launch sets it.
	Rootless bool
}

// Report is what a keeper tells the process that has started it.
type Report struct {
	// Step is a step that has ended, and Seconds is how long it took.
	Step    string  `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
	// Name and Logs come with the first report, and with Ready.
	Name string `json:",omitempty"`
	Logs string `json:",omitempty"`
	// Ready says that the cluster can be used. API and Kubeconfig come with it.
	Ready      bool   `json:",omitempty"`
	API        string `json:",omitempty"`
	Kubeconfig string `json:",omitempty"`
	// Error says that the cluster has failed. A cluster in memory is then there until Stop, for its logs.
	Error string `json:",omitempty"`
}

// Command is the hidden command of kedge that calls Main.
const Command = "throwaway-keeper"

// stay is what a keeper reads if it is to go on when the process that started it ends.
const stay = "stay\n"

// Process is a keeper that runs.
type Process struct {
	cmd     *exec.Cmd
	hold    io.WriteCloser
	reports *bufio.Scanner
	log     *os.File
	// failed gets the reason when a cluster that was ready fails.
	failed chan error
}

// Launch starts a keeper. The keeper ends, and removes the cluster, when this process ends in whatever way,
// unless it calls Detach.
func Launch(job Job) (*Process, error) {
	job.Rootless = os.Geteuid() != 0 && !job.Cluster.APIOnly
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	// What the keeper prints, for example when it crashes. The file has no name, and goes with its users.
	log, err := os.CreateTemp("", "kedge-keeper-")
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	os.Remove(log.Name())
	p := &Process{log: log, failed: make(chan error, 1)}
	if p.cmd, err = command(job.Rootless); err != nil {
		return nil, err
	}
	p.cmd.Stderr = log
	// Signals of the terminal are for the user's command only.
	p.cmd.SysProcAttr.Setsid = true
	p.cmd.Dir = "/"
	hold, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reports, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, hosts.Explain(fmt.Errorf("start keeper: %w", err))
	}
	p.hold, p.reports = hold, bufio.NewScanner(reports)
	if job.Rootless {
		if err := rootless.GiveIDs(p.cmd.Process.Pid); err != nil {
			_ = p.Stop()
			return nil, err
		}
		text = append([]byte("go\n"), text...)
	}
	if _, err := p.hold.Write(append(text, '\n')); err != nil {
		return nil, errors.Join(fmt.Errorf("start keeper: %w", err), p.Stop())
	}
	return p, nil
}

// command returns the command of a keeper.
func command(inNamespace bool) (*exec.Cmd, error) {
	if !inNamespace {
		cmd := exec.Command("/proc/self/exe", Command)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		return cmd, nil
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the executable of kedge: %w", err)
	}
	return rootless.Command(executable, Command), nil
}

// WaitReady waits until the cluster can be used, and calls progress with each step until then. If ctx ends
// before that, WaitReady returns at once. With an error, the report has the Name and the Logs of the cluster, if
// it has these already.
func (p *Process) WaitReady(ctx context.Context, progress func(Report)) (Report, error) {
	reports := make(chan Report)
	go func() {
		defer close(reports)
		for p.reports.Scan() {
			var report Report
			if err := json.Unmarshal(p.reports.Bytes(), &report); err != nil {
				report = Report{Error: fmt.Sprintf("read report of keeper: %v", err)}
			}
			select {
			case reports <- report:
			case <-ctx.Done():
				return
			}
			if report.Ready {
				go p.watch()
			}
			if report.Ready || report.Error != "" {
				return
			}
		}
	}()
	var started Report
	for {
		select {
		case <-ctx.Done():
			return started, context.Cause(ctx)
		case report, more := <-reports:
			switch {
			case !more:
				return started, fmt.Errorf("the keeper of the cluster ended (%v). It printed:\n%s", p.cmd.Wait(), p.printed())
			case report.Error != "":
				return started, errors.New(report.Error)
			case report.Ready:
				return report, nil
			case report.Step == "":
				started = report
			default:
				progress(report)
			}
		}
	}
}

// watch waits until a cluster that is ready fails.
func (p *Process) watch() {
	var report Report
	if p.reports.Scan() && json.Unmarshal(p.reports.Bytes(), &report) == nil && report.Error != "" {
		p.failed <- errors.New(report.Error)
		return
	}
	p.failed <- fmt.Errorf("its keeper (process %d) has ended: somebody deleted the cluster, or killed the keeper", p.cmd.Process.Pid)
}

// Failed gets the reason if a cluster that was ready fails before Stop.
func (p *Process) Failed() <-chan error { return p.failed }

func (p *Process) printed() string {
	text := make([]byte, logTail)
	n, _ := p.log.ReadAt(text, 0)
	return strings.TrimSpace(string(text[:n]))
}

// Stop ends the cluster, and waits until everything of it is removed.
func (p *Process) Stop() error {
	p.hold.Close()
	defer p.log.Close()
	var exit *exec.ExitError
	err := p.cmd.Wait()
	if errors.As(err, &exit) {
		if text := p.printed(); text != "" {
			return fmt.Errorf("the keeper of the cluster failed: %s", text)
		}
		return fmt.Errorf("the keeper of the cluster failed (%w): the next kedge run or kedge cluster command removes what is left", err)
	}
	return err
}

// Detach lets the keeper go on without this process.
func (p *Process) Detach() error {
	defer p.log.Close()
	_, err := io.WriteString(p.hold, stay)
	if err := errors.Join(err, p.hold.Close()); err != nil {
		return fmt.Errorf("leave the cluster running: %w", err)
	}
	return p.cmd.Process.Release()
}

// Main is the main function of a keeper. It reads its job from in, and writes reports to out.
func Main(ctx context.Context, in io.Reader, out io.Writer) error {
	// The process that started this one may be gone when this one writes.
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
	reader := bufio.NewReader(in)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	encoder := json.NewEncoder(out)
	report := func(r Report) { _ = encoder.Encode(r) }
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		if word, _ := reader.ReadString('\n'); word != stay {
			end()
		}
	}()
	if err := run(ctx, job, report); err != nil {
		// Nobody reads this if the fault was reported before.
		report(Report{Error: err.Error()})
		return err
	}
	return nil
}

func run(ctx context.Context, job Job, report func(Report)) error {
	helpers := helpersFolder
	if job.Rootless {
		// The user is the root of this namespace.
		job.Cluster.Owner = 0
		var err error
		if helpers, err = rootless.Helpers(); err != nil {
			return err
		}
		if err := rootless.Arrive(); err != nil {
			return err
		}
	}
	take := func() (*clusters.Held, error) { return job.Store.Create(job.Cluster) }
	if job.Existing {
		take = func() (*clusters.Held, error) { return job.Store.Hold(job.Cluster.Name) }
	}
	held, err := take()
	if err != nil {
		return err
	}
	k := &keeper{Held: held, store: job.Store, report: report, isNew: !job.Existing, archives: job.Images, rootless: job.Rootless, helpers: helpers}
	if held.APIOnly {
		return k.keepAPI(ctx)
	}
	return k.keep(ctx)
}
