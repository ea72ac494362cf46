package kubeinit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

func TestBridge(t *testing.T) {
	tests := map[string]struct {
		verbosity int
		log       func(logr.Logger, func([]byte))
		want      string
	}{
		"information is for debugging": {
			log: func(l logr.Logger, _ func([]byte)) { l.Info("started") },
		},
		"information on request": {
			verbosity: 1,
			log:       func(l logr.Logger, _ func([]byte)) { l.V(1).Info("started", "pods", 3); l.V(2).Info("more") },
			want:      "level=info msg=started component=kubernetes pods=3\n",
		},
		"errors with names and values": {
			log: func(l logr.Logger, _ func([]byte)) {
				l.WithName("controllers").WithName("job").WithValues("key", "a/b").Error(errors.New("gone"), "sync failed")
			},
			want: "level=error msg=\"sync failed\" component=controllers/job error=gone key=a/b\n",
		},
		"objects by their names": {
			log: func(l logr.Logger, _ func([]byte)) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.PodSpec{Priority: new(int32)}}
				l.Error(nil, "failed", "pod", pod, "node", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "none", (*corev1.Pod)(nil), "event", (*corev1.Event)(nil))
			},
			want: "level=error msg=failed component=kubernetes event=\"<nil>\" node=n none=\"<nil>\" pod=a/b\n",
		},
		"what an Event says": {
			log: func(l logr.Logger, _ func([]byte)) {
				l.Error(errors.New("refused"), "Server rejected event (will not retry!)", "event", &corev1.Event{
					InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "a", Name: "b"}, Reason: "Failed", Message: "no image", Series: &corev1.EventSeries{},
				})
			},
			want: "level=error msg=\"Server rejected event (will not retry!)\" component=kubernetes error=refused event=\"Failed of Pod a/b: no image\"\n",
		},
		"no places in memory": {
			log: func(l logr.Logger, _ func([]byte)) {
				l.Error(fmt.Errorf("got %#v", struct{ p *int }{new(int)}), "failed", "set", []*int{new(int)}, "port", "0xc000")
			},
			want: "level=error msg=failed component=kubernetes error=\"got struct { p *int }{p:(*int)(...)}\" port=0xc000 set=\"[...]\"\n",
		},
		"an odd number of values": {
			log:  func(l logr.Logger, _ func([]byte)) { l.Error(nil, "odd", "key") },
			want: "level=error msg=odd component=kubernetes\n",
		},
		"upstream's own name for no name": {
			log:  func(l logr.Logger, _ func([]byte)) { l.WithName("UnhandledError").Error(nil, "failed") },
			want: "level=error msg=failed component=kubernetes\n",
		},
		"printf-style warning": {
			verbosity: 1,
			log: func(_ logr.Logger, write func([]byte)) {
				write([]byte("W1121 03:35:50.000000   12345 file.go:42] took [long] time\n"))
			},
			want: "level=warning msg=\"took [long] time\" component=kubernetes\n",
		},
		"while containerd has klog's own verbosity changed": {
			log: func(l logr.Logger, write func([]byte)) {
				changeKlog(t)
				write([]byte("W1121 file.go:42] chat\n"))
				l.Info("chat")
			},
		},
		"printf-style end of the process": {
			log: func(_ logr.Logger, write func([]byte)) {
				write([]byte("F1121 03:35:50.000000   12345 file.go:42] hook failed\n"))
			},
			want: "level=error msg=\"hook failed\" component=kubernetes\n",
		},
		"printf-style information": {
			log: func(_ logr.Logger, write func([]byte)) { write([]byte("I1121 file.go:42] chat\n")) },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := logrus.New()
			log.SetOutput(&out)
			log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
			b := newBridge(log, &Verbosity{})
			if err := b.verbosity.Set(test.verbosity); err != nil {
				t.Fatal(err)
			}
			test.log(logr.New(b), b.writeLine)
			if got := out.String(); got != test.want {
				t.Errorf("logged %q, want %q", got, test.want)
			}
		})
	}
}

// TestRefusals has a datastore that can write nothing. The log says so once, and has all other errors.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := logrus.New()
		log.SetOutput(&out)
		b := newBridge(log, &Verbosity{})
		full := errors.New("disk is full: nothing can be written to /db until space is freed")
		lines := func() int {
			defer out.Reset()
			return strings.Count(out.String(), "\n")
		}
		for range 100 {
			b.Error(full, "Server rejected event (will not retry!)")
			b.WithName("controllers").(*bridge).Error(full, "Failed to update lock")
			b.writeLine([]byte("E1121 file.go:42] error retrieving resource lock: " + full.Error() + "\n"))
		}
		if strings.Contains(out.String(), "level=error") {
			t.Errorf("an error: %s", out.String())
		}
		if got := lines(); got != 1 {
			t.Errorf("%d lines, want 1", got)
		}
		for range 10 {
			b.Error(errors.New("timed out waiting for the condition"), "Update health of Node from Controller error")
			b.Error(errors.New("boom"), "failed")
		}
		if got := lines(); got != 2 {
			t.Errorf("%d lines of two other errors, want 2", got)
		}
		for i := range 2*maxOthers + 1 {
			b.Error(nil, fmt.Sprintf("attempt %d failed", i))
		}
		if got := len(b.refused.others); lines() <= maxOthers || got > maxOthers {
			t.Errorf("%d messages are remembered, want at most %d", got, maxOthers)
		}
		time.Sleep(reminder)
		b.Error(full, "failed")
		if got := lines(); got != 1 {
			t.Errorf("%d lines a minute later, want 1", got)
		}
		time.Sleep(reminder)
		for range 2 {
			b.Error(errors.New("boom"), "failed")
		}
		if got := lines(); got != 2 {
			t.Errorf("%d lines of two errors when the datastore writes again, want 2", got)
		}
	})
}

// changeKlog sets klog's verbosity, as other libraries do.
func changeKlog(t *testing.T) {
	t.Helper()
	var level klog.Level
	if err := level.Set("4"); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreVerbosity(t *testing.T) {
	var verbosity Verbosity
	if err := verbosity.Set(2); err != nil {
		t.Fatal(err)
	}
	changeKlog(t)
	if !klog.V(4).Enabled() {
		t.Fatal("klog's verbosity is not changed")
	}
	verbosity.Restore()
	if !klog.V(2).Enabled() || klog.V(3).Enabled() {
		t.Error("klog's verbosity is not 2")
	}
}

func TestPhase(t *testing.T) {
	const atStart = "Skipping pod synchronization"
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	b := newBridge(log, &Verbosity{})
	for _, step := range []struct {
		enter         func()
		shown, hidden string
	}{
		{func() {}, "boom", atStart},
		{b.phase.Ready, atStart, ""},
		{b.phase.Stopping, "", "boom"},
	} {
		step.enter()
		if b.Error(nil, step.hidden); step.hidden != "" && out.Len() > 0 {
			t.Errorf("%q was shown", step.hidden)
		}
		out.Reset()
		if b.Error(nil, step.shown); step.shown != "" && out.Len() == 0 {
			t.Errorf("%q was not shown", step.shown)
		}
		out.Reset()
	}
}

// TestExit makes a library of Kubernetes end the process, before and after kedge is asked
// to stop.
func TestExit(t *testing.T) {
	for _, test := range []struct {
		name, last, want string
		stopped          bool
	}{
		{"with a reason", "PostStartHook \"a\" failed", `with status 255: PostStartHook "a" failed`, false},
		{"without a reason", "", "with status 255: the log has its last error", false},
		{"in a stop", "PostStartHook \"a\" failed", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBridge(logrus.New(), &Verbosity{})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			watched, fault := b.phase.Watch(ctx)
			if err := fault(); err != nil {
				t.Errorf("at first: %v", err)
			}
			if test.stopped {
				stop()
			}
			if test.last != "" {
				b.writeLine([]byte("F1121 file.go:42] " + test.last + "\n"))
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				b.phase.exit(255)
				t.Error("exit returned: want it to end the goroutine")
			}()
			<-ended
			<-watched.Done()
			if err := fault(); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
