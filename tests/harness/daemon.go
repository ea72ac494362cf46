package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// readyTimeout is long, because the machine may be slow and busy.
	readyTimeout = 4 * time.Minute
	// stopTimeout is longer than kedge promises, because the machine may be busy.
	stopTimeout = 45 * time.Second
	logTail     = 150
)

// daemon is a kedge that runs on a host.
type daemon struct {
	Host *Host

	t      T
	args   []string
	cmd    *Cmd
	began  time.Time
	exited chan struct{}
}

// startDaemon starts kedge with args and does not wait for it. If the test fails, it shows the end of
// the log.
func (h *Host) startDaemon(t T, command string, args ...string) *daemon {
	t.Helper()
	return h.startCommand(t, append([]string{command, "--kubelet-arg=cgroup-root=" + h.Cgroup()}, args...)...)
}

// startCommand is startDaemon without the argument that every kedge of the tests needs.
func (h *Host) startCommand(t T, args ...string) *daemon {
	t.Helper()
	d := &daemon{Host: h, t: t, args: args}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of kedge on %s:\n%s", h.Name, d.LogTail())
		}
	})
	d.Start()
	return d
}

// Start starts kedge again after it ended.
func (d *daemon) Start() {
	d.t.Helper()
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		d.t.Fatalf("open log: %v", err)
	}
	defer log.Close()
	cmd, exited := d.Host.Kedge(context.Background(), d.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		d.t.Fatalf("start kedge on %s: %v", d.Host.Name, err)
	}
	d.cmd, d.began, d.exited = cmd, began, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
}

// Process returns kedge's process, with its ID on the machine.
func (d *daemon) Process() *os.Process { return d.cmd.Process }

// Runs tells whether the process that Start last started has not ended.
func (d *daemon) Runs() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// Exited waits until the process that Start last started has ended.
func (d *daemon) Exited() { <-d.exited }

// WaitExit waits until kedge has ended. It returns the exit status, or -1 after a signal.
func (d *daemon) WaitExit(timeout time.Duration) int {
	d.t.Helper()
	select {
	case <-d.exited:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(Slowly(timeout)):
		// SIGQUIT writes to the log what kedge is waiting for.
		_ = d.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second)
		d.Kill9()
		d.t.Fatalf("kedge on %s did not end within %s", d.Host.Name, timeout)
		return -1
	}
}

// Kill9 kills kedge with SIGKILL.
func (d *daemon) Kill9() {
	_ = d.cmd.Process.Kill()
	<-d.exited
}

// Terminate stops kedge with SIGTERM and fails the test unless the exit status is 0.
func (d *daemon) Terminate() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatalf("terminate kedge: %v", err)
	}
	if code := d.WaitExit(stopTimeout); code != 0 {
		d.t.Fatalf("kedge ended with status %d after SIGTERM, want 0", code)
	}
}

// waitFor waits until check returns nil. It fails the test if kedge ends before that.
func (d *daemon) waitFor(what string, check func() error) {
	d.t.Helper()
	Eventually(d.t, readyTimeout, what, func() error {
		select {
		case <-d.exited:
			d.t.Fatalf("waiting for %s: kedge on %s ended with %s", what, d.Host.Name, d.cmd.ProcessState)
		default:
		}
		return check()
	})
}

// WaitLog waits until kedge has logged text.
func (d *daemon) WaitLog(text string) {
	d.t.Helper()
	Eventually(d.t, readyTimeout, "kedge on "+d.Host.Name+" to say "+text, func() error {
		if !strings.Contains(d.Log(), text) {
			return errors.New("the text is not in the log, which ends with\n" + d.LogTail())
		}
		return nil
	})
}

// nodeReady returns nil if the node called name has become Ready since this kedge started.
func (d *daemon) nodeReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		// After a restart the earlier kubelet's status stays for a while.
		if condition.LastHeartbeatTime.Time.Before(d.began.Truncate(time.Second)) {
			return errors.New("the node's status is from before the restart")
		}
		if condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("node is not Ready: %s: %s", condition.Reason, condition.Message)
		}
		return nil
	}
	return errors.New("node has no condition Ready")
}

// logFile returns the path of the log in the host's folder. If the host has a disk, it is on the disk.
func (d *daemon) logFile() string { return d.Host.Path(filepath.Join(d.Host.dir, "kedge.log")) }

// Log returns everything that kedge has logged.
func (d *daemon) Log() string {
	text, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// LogTail returns the last lines of the log.
func (d *daemon) LogTail() string {
	lines := bytes.Split([]byte(strings.TrimSpace(d.Log())), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-logTail):], []byte("\n")))
}
