package containerd

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
)

// captureLog makes containerd log through logrus as a component. Its informational messages,
// several lines for every plugin and pod, become debug messages, and its own debug messages are
// left out. Its errors become debug messages when ctx ends, because containerd then stops in the
// middle of its work: the kubelet repeats that after the next start. A fatal message of containerd ends only the goroutine that logs it and is sent to the
// channel. containerd's own code would end the process without naming the component
// (plugins/cri/cri.go, plugins/server/internal/serve.go).
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/cri/cri.go initCRIService
//upstream:relies-on github.com/containerd/containerd/v2/plugins/server/internal/serve.go Serve
func captureLog(ctx context.Context) <-chan error {
	standard := logrus.StandardLogger()
	failed := make(chan error, 1)
	logger := &logrus.Logger{
		Out:       standard.Out,
		Formatter: leaveOut{standard.Formatter, ctx, &rate.Sometimes{Interval: unwrittenPause}},
		Hooks:     logrus.LevelHooks{},
		Level:     logrus.InfoLevel,
		ExitFunc:  func(int) { runtime.Goexit() },
	}
	for level, hooks := range standard.Hooks {
		logger.Hooks[level] = append(logger.Hooks[level], hooks...)
	}
	logger.AddHook(fatalHook(failed))
	log.L = logger.WithField("component", Name)
	nrilog.Set(nriLogger{log.L})
	return failed
}

// expected are warnings that every start logs and that mean nothing.
var expected = []string{
	//upstream:relies-on github.com/containerd/containerd/v2/plugins/content/local/store.go NewLabeledStore
	"failed check for fsverity support", // most file systems lack it; nothing needs it
	// The network component writes the CNI configuration once the node has its pod CIDR.
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/cni_conf_syncer.go newCNINetConfSyncer
	"failed to load cni during init, please check CRI plugin status before setting up network for pods",
	// This is about plugins of the node resource interface that are written in WebAssembly. kedge
	// leaves out the runtime for these (nri_no_wasm in the Makefile).
	//upstream:relies-on github.com/containerd/nri/pkg/adaptation/adaptation.go New ErrWasmDisabled
	"failed to initialize WASM support: WASM support is disabled (at build time)",
}

// answered matches errors that containerd's CRI also returns to the kubelet, which reports them
// as Events (internal/cri/instrument/instrumented_service.go).
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/instrument/instrumented_service.go
var answered = regexp.MustCompile(`^[A-Z][A-Za-z]+ (for |within sandbox |with filter |").*failed(, error)?$`)

// routines are further errors and warnings that do not indicate a fault: of containers that cannot start or
// have ended, and of loops that run while kedge stops. message is the beginning of the log
// message, detail a part of the error.
var routines = []struct{ message, detail string }{
	//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/shim.go shimTask.delete
	{"failed to delete task", "not found"}, // core/runtime/v2/shim.go
	//upstream:relies-on github.com/containerd/containerd/v2/plugins/services/tasks/local.go getTasksMetrics
	{"collecting metrics for", "cgroup deleted"}, // plugins/services/tasks/local.go
	{"collecting metrics for", "ttrpc: closed"},  // the same, if the shim has gone
	//upstream:relies-on github.com/containerd/ttrpc/server.go serverConn.run
	{"failed sending message on channel", "broken pipe"}, // ttrpc/server.go: a shim has gone
	//upstream:relies-on github.com/containerd/ttrpc/client.go Client.receiveLoop
	{"ttrpc: received message on inactive stream", ""}, // ttrpc/client.go: an answer to a call that was given up
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/io/container_io.go
	{"Failed to pipe std", "closed fifo"},                    // internal/cri/io/container_io.go
	{"Failed to close stdin for container", "not found"},     // the same file: the container has ended
	{"Failed to close stdin for container", "ttrpc: closed"}, // the same, and its shim has gone, too
	// internal/cri/server/restart.go: a stop of kedge, or of the host, has interrupted the creation of a pod.
	// The kubelet removes what there is of it, and creates it again.
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/restart.go criService.recover criService.loadContainer
	{"failed to recover sandbox state", "not found"},
	{"Failed to load container status for", "no such file or directory"},
	// core/runtime/v2/shim_load.go: a stop of kedge has interrupted the deletion of a pod whose shim had ended. containerd removes
	// what is left of it.
	//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/shim_load.go ShimManager.loadShims
	{"failed to load shim", "connect: no such file or directory"},
	// core/runtime/v2/binary.go: another deletion has removed the folder of the shim meanwhile
	//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/binary.go binary.Delete
	{"failed to delete dead shim", "getwd: no such file or directory"},
	//upstream:relies-on github.com/containerd/containerd/v2/core/runtime/v2/shim.go cleanupAfterDeadShim
	{"failed to clean up after shim disconnected", "getwd: no such file or directory"},
	// A stop has interrupted the creation of a container: the shim had not yet written its options, so runc knows nothing of
	// the container.
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc/container.go NewContainer WriteOptions ReadOptions
	{"failed to delete dead shim", "unexpected end of JSON input"},
	{"failed to clean up after shim disconnected", "unexpected end of JSON input"},
	// internal/cri/server/container_image_mount.go: a pod is stopped whose container is gone, and its volumes of images
	// with it
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/container_image_mount.go criService.cleanupImageMounts
	{"failed to get sandbox runtime handler", "not found"},
}

// unwritten is how an error begins that containerd logs for each line of a container that it cannot write. It is logged
// once in unwrittenPause: a container on a full disk could otherwise fill the log of kedge as fast as it writes.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/io/logger.go redirectLogs
const (
	unwritten      = "Fail to write"
	unwrittenPause = time.Minute
)

// late matches the errors of a request for which nobody waits any longer, or that is out of time because the machine is
// busy. The kubelet sends its requests again, and containerd handles the end of a container again.
//
//upstream:relies-on std/context/context.go Canceled deadlineExceededError.Error
//upstream:relies-on google.golang.org/grpc/internal/status/status.go Error.Error
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/events/events.go EventMonitor.Start
var late = regexp.MustCompile(`context canceled|deadline exceeded|code = DeadlineExceeded`)

// isRoutine tells whether an error or a warning indicates no fault of containerd or of the host.
func isRoutine(entry *logrus.Entry) bool {
	if entry.Level != logrus.ErrorLevel && entry.Level != logrus.WarnLevel {
		return false
	}
	detail := fmt.Sprint(entry.Data[logrus.ErrorKey], entry.Data["stderr"])
	for _, r := range routines {
		if strings.HasPrefix(entry.Message, r.message) && strings.Contains(detail, r.detail) {
			return true
		}
	}
	return entry.Level == logrus.ErrorLevel && (late.MatchString(detail) || answered.MatchString(entry.Message))
}

// leaveOut formats all messages except the expected ones and those below the level that is set.
type leaveOut struct {
	logrus.Formatter
	// ctx ends when containerd has to stop.
	ctx context.Context
	// lines says when an error that begins with unwritten is due again.
	lines *rate.Sometimes
}

func (f leaveOut) Format(entry *logrus.Entry) ([]byte, error) {
	if slices.Contains(expected, entry.Message) {
		return nil, nil
	}
	tooOften := false
	if strings.HasPrefix(entry.Message, unwritten) {
		tooOften = true
		f.lines.Do(func() { tooOften = false })
	}
	if tooOften || entry.Level == logrus.InfoLevel || entry.Level == logrus.ErrorLevel && f.ctx.Err() != nil || isRoutine(entry) {
		if !logrus.IsLevelEnabled(logrus.DebugLevel) {
			return nil, nil
		}
		entry.Level = logrus.DebugLevel
	}
	return f.Formatter.Format(entry)
}

// nriLogger makes the node resource interface log like the rest of containerd.
type nriLogger struct{ entry *logrus.Entry }

func (l nriLogger) Debugf(_ context.Context, format string, args ...any) {
	l.entry.Debugf(format, args...)
}
func (l nriLogger) Infof(_ context.Context, format string, args ...any) {
	l.entry.Infof(format, args...)
}
func (l nriLogger) Warnf(_ context.Context, format string, args ...any) {
	l.entry.Warnf(format, args...)
}
func (l nriLogger) Errorf(_ context.Context, format string, args ...any) {
	l.entry.Errorf(format, args...)
}

type fatalHook chan<- error

func (fatalHook) Levels() []logrus.Level { return []logrus.Level{logrus.FatalLevel} }

func (h fatalHook) Fire(entry *logrus.Entry) error {
	err := fmt.Errorf("%s", entry.Message)
	if cause, ok := entry.Data[logrus.ErrorKey].(error); ok {
		err = fmt.Errorf("%s: %w", entry.Message, cause)
	}
	select {
	case h <- err:
	default: // the first error is the cause
	}
	return nil
}
