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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	kubeconfig = "/etc/kedge/kedge.yaml"
	// readyTimeout is generous: the machine may be slow and busy.
	readyTimeout = 4 * time.Minute
	// stopTimeout is what kedge promises, and then some for a busy machine.
	stopTimeout = 45 * time.Second
	logTail     = 150
)

// Server is a `kedge server` on a host.
type Server struct {
	Host *Host

	t      T
	args   []string
	log    string
	cmd    *Cmd
	exited chan struct{}
}

// StartServer starts `kedge server` with args and does not wait for it. If the
// test fails, the end of its log is shown.
func (h *Host) StartServer(t T, args ...string) *Server {
	t.Helper()
	s := &Server{
		Host: h,
		t:    t,
		args: append([]string{"server", "--kubelet-arg=cgroup-root=" + h.Cgroup()}, args...),
		log:  filepath.Join(h.dir, "kedge.log"),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of kedge on %s:\n%s", h.Name, s.LogTail())
		}
	})
	s.Start()
	return s
}

// Start starts the server again after it ended.
func (s *Server) Start() {
	s.t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		s.t.Fatalf("open log: %v", err)
	}
	defer log.Close()
	cmd, exited := s.Host.Kedge(context.Background(), s.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start kedge on %s: %v", s.Host.Name, err)
	}
	s.cmd, s.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
}

// Process is the server's process, with its process id on the machine.
func (s *Server) Process() *os.Process { return s.cmd.Process }

// WaitExit waits until the server ended, and returns its exit status, or -1
// after a signal.
func (s *Server) WaitExit(timeout time.Duration) int {
	s.t.Helper()
	select {
	case <-s.exited:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(timeout):
		// What it waits for is in the log then.
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second)
		s.Kill9()
		s.t.Fatalf("kedge on %s did not end within %s", s.Host.Name, timeout)
		return -1
	}
}

// Kill9 kills the server as a power cut would.
func (s *Server) Kill9() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Terminate stops the server by SIGTERM, and wants the exit status 0.
func (s *Server) Terminate() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatalf("terminate kedge: %v", err)
	}
	if code := s.WaitExit(stopTimeout); code != 0 {
		s.t.Fatalf("kedge ended with status %d after SIGTERM, want 0", code)
	}
}

// Restart stops the server in order, starts it and waits until it is ready.
func (s *Server) Restart() {
	s.t.Helper()
	s.Terminate()
	s.Start()
	s.WaitReady()
}

// WaitReady waits until the API answers and the node is Ready.
func (s *Server) WaitReady() {
	s.t.Helper()
	Eventually(s.t, readyTimeout, "the node of "+s.Host.Name+" to be Ready", func() error {
		select {
		case <-s.exited:
			s.t.Fatalf("kedge on %s ended with %s before it was ready", s.Host.Name, s.cmd.ProcessState)
		default:
		}
		return s.ready()
	})
}

func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cfg, err := s.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, s.Host.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		// After a restart the last one's word still stands for a while.
		info, err := os.Stat(fmt.Sprintf("/proc/%d", s.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if condition.LastHeartbeatTime.Time.Before(info.ModTime().Truncate(time.Second)) {
			return errors.New("the node's status is from before the restart")
		}
		if condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("node is not Ready: %s: %s", condition.Reason, condition.Message)
		}
		return nil
	}
	return errors.New("node has no condition Ready")
}

// config is the administrator's way to the API, from inside the host.
func (s *Server) config() (*rest.Config, error) {
	text, err := os.ReadFile(s.Host.Path(kubeconfig))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	cfg.Dial = s.Host.DialContext
	cfg.QPS = -1
	return cfg, nil
}

// RESTConfig returns the administrator's way to the API, from inside the host.
func (s *Server) RESTConfig() *rest.Config {
	s.t.Helper()
	cfg, err := s.config()
	if err != nil {
		s.t.Fatalf("read kubeconfig: %v", err)
	}
	return cfg
}

// Client returns a client of the API with the administrator's rights.
func (s *Server) Client() kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		s.t.Fatalf("make client: %v", err)
	}
	return client
}

// Log returns everything kedge wrote.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// LogTail returns the last lines of what kedge wrote.
func (s *Server) LogTail() string {
	lines := bytes.Split([]byte(strings.TrimSpace(s.Log())), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-logTail):], []byte("\n")))
}
