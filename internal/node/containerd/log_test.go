package containerd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

func TestCaptureLog(t *testing.T) {
	standard, old := logrus.StandardLogger(), log.L
	out := standard.Out
	t.Cleanup(func() { standard.Out, log.L = out, old })
	var buf bytes.Buffer
	standard.Out = &buf
	ctx, cancel := context.WithCancel(t.Context())
	failed := captureLog(ctx)

	log.L.Info("loading plugin")
	log.L.Warn(expected[0])
	log.L.Warn("something is wrong")
	if got := buf.String(); strings.Contains(got, "loading") || strings.Contains(got, expected[0]) || !strings.Contains(got, "something is wrong") || !strings.Contains(got, "component=containerd") {
		t.Errorf("got log %q, want the warning with its component, and nothing of a normal start", got)
	}

	buf.Reset()
	log.L.WithError(errors.New("not found")).Error(`PullImage "nowhere.test/none:1" failed`)
	log.L.WithError(errors.New("closed fifo")).Errorf("Failed to pipe stdout of container %q", "a")
	if got := buf.String(); got != "" {
		t.Errorf("errors that the kubelet tells of: %s", got)
	}
	for message, err := range map[string]string{
		"get state for 014dd654":                        "context canceled",
		`Failed to close stdin for container "a"`:       "container not created: not found",
		`Failed to close stdin for container "b"`:       "ttrpc: closed",
		"failed to delete shim":                         "close wait error: context deadline exceeded",
		`failed to handle sandbox exit event id:"a"`:    "failed to stop sandbox: failed to delete task: context deadline exceeded",
		"failed to recover sandbox state":               `unable to find sandbox "a": not found`,
		`failed to get sandbox runtime handler "91e63"`: "not found",
		"failed to load shim /run/task/16d2645f":        `unable to load shim "16d2645f": unable to make connection: failed to create TTRPC connection: dial unix /run/s/b732: connect: no such file or directory`,
		`Failed to load container status for "014dd6"`:  "failed to load task: failed to open stdout, error creating fifo /run/a-stdout: no such file or directory",
	} {
		log.L.WithError(errors.New(err)).Error(message)
	}
	log.L.WithError(errors.New("exit status 1")).WithField("stderr", "io.containerd.runc.v2: unexpected end of JSON input").Error("failed to delete dead shim")
	for _, err := range []string{"getwd: no such file or directory", "unexpected end of JSON input"} {
		log.L.WithError(errors.New("io.containerd.runc.v2: " + err + ": exit status 1")).Warn("failed to clean up after shim disconnected")
	}
	if got := buf.String(); got != "" {
		t.Errorf("errors of what is done again: %s", got)
	}
	log.L.WithError(errors.New("permission denied")).Warn("failed to clean up after shim disconnected")
	if got := buf.String(); !strings.Contains(got, "level=warning") {
		t.Errorf("a warning about a fault: %q", got)
	}
	buf.Reset()
	log.L.WithError(os.ErrClosed).Error("failed to finish collection context")
	if got := buf.String(); !strings.Contains(got, "level=error") {
		t.Errorf("an error that only a stop explains: %q", got)
	}
	buf.Reset()
	log.L.WithError(errors.New("dial unix /run/s/b732: connect: connection refused")).Error("failed to load shim /run/task/16d2645f")
	if got := buf.String(); !strings.Contains(got, "level=error") {
		t.Errorf("a shim that was killed: %q", got)
	}
	buf.Reset()
	log.L.WithError(errors.New("input/output error")).Errorf("Failed to pipe stdout of container %q", "a")
	if got := buf.String(); !strings.Contains(got, "level=error") {
		t.Errorf("an error of the host: %q", got)
	}

	buf.Reset()
	for range 3 {
		log.L.WithError(errors.New("no space left")).Errorf("Fail to write %q log to log file %q", "stderr", "/var/log/pods/a/0.log")
	}
	if got := buf.String(); strings.Count(got, "Fail to write") != 1 {
		t.Errorf("lines of a container that cannot be written: %q", got)
	}

	cause := errors.New("no space left")
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		log.L.WithError(cause).Fatal("serve failure")
		returned = true
	}()
	<-done
	if err := <-failed; !errors.Is(err, cause) || !strings.Contains(err.Error(), "serve failure") {
		t.Errorf("failed with %v", err)
	}
	if returned {
		t.Error("the code after Fatal ran")
	}

	cancel()
	buf.Reset()
	log.L.WithError(os.ErrClosed).Error("failed to finish collection context")
	log.L.WithError(errors.New("database not open")).Error(`Failed to delete containerd task "014dd654"`)
	if got := buf.String(); got != "" {
		t.Errorf("errors of work that a stop interrupts: %s", got)
	}
}
