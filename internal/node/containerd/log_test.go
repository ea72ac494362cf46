package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	bolterrors "go.etcd.io/bbolt/errors"
)

func TestCaptureLog(t *testing.T) {
	standard, old := logrus.StandardLogger(), log.L
	out := standard.Out
	t.Cleanup(func() { standard.Out, log.L = out, old })
	var buf bytes.Buffer
	standard.Out = &buf
	failed := captureLog()

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
	log.L.WithError(fmt.Errorf("update database: %w", os.ErrClosed)).WithField("type", "snapshot").Error("failed to finish collection context")
	log.L.WithError(errors.New("write /var/lib/kedge/agent/containerd/meta.db: file already closed")).Error("failed to finish collection context")
	log.L.WithError(fmt.Errorf("update database: %w", bolterrors.ErrDatabaseNotOpen)).Error("failed to collect")
	if got := buf.String(); got != "" {
		t.Errorf("errors of a collection of garbage that a stop interrupts: %s", got)
	}
	log.L.WithError(errors.New("input/output error")).Error("failed to finish collection context")
	if got := buf.String(); !strings.Contains(got, "level=error") {
		t.Errorf("an error of the host in a collection of garbage: %q", got)
	}
	buf.Reset()
	log.L.WithError(errors.New("input/output error")).Errorf("Failed to pipe stdout of container %q", "a")
	if got := buf.String(); !strings.Contains(got, "level=error") {
		t.Errorf("an error of the host: %q", got)
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
}
