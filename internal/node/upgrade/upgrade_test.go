package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

const (
	oldVersion = "v1.37.2+kedge.1"
	newVersion = "v1.38.0+kedge.1"
)

// script returns an executable that tells a version.
func script(version string) []byte { return []byte("#!/bin/sh\necho kedge " + version + "\n") }

// host runs the component of node a over a fake API.
type host struct {
	*testing.T
	folder string
	api    *fake.Clientset
	orders chan upgrades.Order
	told   *logrustest.Hook
	*upgrader

	mu sync.Mutex
	// served is what servers have. A nil answer is one that never comes.
	served [][]byte
	// fault is what patches of nodes fail with.
	fault error
}

func newHost(t *testing.T) *host {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}
	h := &host{T: t, folder: t.TempDir(), api: fake.NewClientset(node), orders: make(chan upgrades.Order)}
	h.write(h.installed(), script(oldVersion))
	h.api.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if patch := action.(clienttesting.PatchAction); action.GetSubresource() != "status" || patch.GetName() != "a" {
			t.Errorf("it patches %s/%s", patch.GetName(), action.GetSubresource())
		}
		return h.fault != nil, nil, h.fault
	})
	h.upgrader = newUpgrader(Config{
		Orders: func(ctx context.Context, apply func(upgrades.Order) error) error {
			for {
				select {
				case order := <-h.orders:
					if err := apply(order); err != nil {
						t.Error(err)
					}
				case <-ctx.Done():
					return nil
				}
			}
		},
		Fetch: h.fetch, Installed: h.installed(), Own: h.installed(), Version: oldVersion, Record: h.record(),
		Informers: objectcache.Own(h.api), NodeName: "a",
	})
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	h.told = logrustest.NewLocal(logger)
	h.upgrader.api, h.log = h.api, logrus.NewEntry(logger)
	return h
}

func (h *host) installed() string { return filepath.Join(h.folder, "kedge") }
func (h *host) record() string    { return filepath.Join(h.folder, "data", "trial.json") }

func (h *host) write(path string, content []byte) {
	h.Helper()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		h.Fatal(err)
	}
}

// serve sets what servers have from now on.
func (h *host) serve(answers ...[]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.served = answers
}

// fetch has the servers answer with what they have, one after the other. The last one answers
// again and again.
func (h *host) fetch(ctx context.Context, digest string, take func(io.Reader) error) error {
	h.mu.Lock()
	if len(h.served) == 0 {
		h.mu.Unlock()
		return os.ErrNotExist
	}
	answer := h.served[0]
	if len(h.served) > 1 {
		h.served = h.served[1:]
	}
	h.mu.Unlock()
	if answer == nil {
		_ = take(stalled(ctx))
		return ctx.Err()
	}
	return take(bytes.NewReader(answer))
}

// stalled is the answer of a server that stops in the middle.
func stalled(ctx context.Context) io.Reader {
	return io.MultiReader(strings.NewReader("#!"), readerFunc(func([]byte) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(buffer []byte) (int, error) { return f(buffer) }

// order returns the order to run an executable. Servers have it.
func (h *host) order(id string, content []byte) upgrades.Order {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.served = append(h.served, content)
	sum := sha256.Sum256(content)
	return upgrades.Order{ID: id, Version: newVersion, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}
}

// run runs the component while do runs. It returns the component's error.
func (h *host) run(do func()) (err error) {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.upgrader.Run(ctx, func() {}) }()
	time.Sleep(time.Second) // its cache has the nodes
	h.settle()
	do()
	cancel()
	return <-ended
}

// settle lets everything happen that is due.
func (h *host) settle() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// send sends orders, and lets everything happen that follows from each.
func (h *host) send(orders ...upgrades.Order) {
	for _, order := range orders {
		h.orders <- order
		h.settle()
	}
}

// reported returns what the Node tells.
func (h *host) reported() upgrades.Report {
	h.Helper()
	node, err := h.api.CoreV1().Nodes().Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	text := node.Annotations[upgrades.ReportAnnotation]
	if text == "" {
		return upgrades.Report{}
	}
	report, err := upgrades.ParseReport(text)
	if err != nil {
		h.Fatal(err)
	}
	return report
}

// condition has the kubelet tell at a time whether the Node is ready.
func (h *host) condition(status corev1.ConditionStatus, told time.Time) {
	h.Helper()
	nodes := h.api.CoreV1().Nodes()
	node, err := nodes.Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(told), Message: "no runtime"}}
	if _, err := nodes.UpdateStatus(context.Background(), node, metav1.UpdateOptions{}); err != nil {
		h.Fatal(err)
	}
	h.settle()
}

// want compares what the Node tells. The message may be longer.
func (h *host) want(id string, stage upgrades.Stage, message string) {
	h.Helper()
	if got := h.reported(); got.ID != id || got.Stage != stage || !strings.Contains(got.Message, message) || (message == "") != (got.Message == "") {
		h.Errorf("the Node tells %+v, want %s %s: %s", got, id, stage, message)
	}
}

// beside returns the names of files beside the installed executable.
func (h *host) beside() string {
	h.Helper()
	entries, err := os.ReadDir(h.folder)
	if err != nil {
		h.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); name != "kedge" && name != "data" {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// TestTrial has an order, the same again, and the trial that it leads to.
func TestTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		content := script(newVersion)
		order := h.order("1", content)
		err := h.run(func() {
			h.send(upgrades.Order{}, order)
		})
		if !errors.Is(err, trial.ErrBegin) {
			t.Errorf("got %v", err)
		}
		h.want("1", upgrades.Trying, "")
		r, err := trial.Read(h.record())
		if err != nil || r.Order != order || r.Attempts != 1 || r.Report != h.reported() {
			t.Errorf("got %+v, %v", r, err)
		}
		candidate := trial.Candidate(h.installed(), order.SHA256)
		info, err := os.Stat(candidate)
		if err != nil || info.Mode() != 0o755 || h.beside() != filepath.Base(candidate) {
			t.Errorf("beside is %s: %v, %v", h.beside(), info, err)
		}
		if got, err := os.ReadFile(candidate); err != nil || !bytes.Equal(got, content) {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// TestAfterTrial has a node that has tried an order before it starts.
func TestAfterTrial(t *testing.T) {
	for name, test := range map[string]struct {
		// attempts were interrupted. The last one was not if it has a verdict.
		attempts int
		verdict  string
		begins   bool
		stage    upgrades.Stage
		message  string
	}{
		"interrupted":           {attempts: 1, begins: true, stage: upgrades.Trying},
		"interrupted each time": {attempts: 3, stage: upgrades.Failed, message: "interrupted 3 times"},
		"failed":                {attempts: 1, verdict: `"stage":"Failed","message":"it was broken"`, stage: upgrades.Failed, message: "it was broken"},
		"upgraded":              {attempts: 1, verdict: `"stage":"Upgraded"`, stage: upgrades.Upgraded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				order := h.order("1", script(newVersion))
				for range test.attempts {
					if _, err := trial.Begin(h.record(), order); err != nil {
						t.Fatal(err)
					}
				}
				if test.verdict != "" {
					text, err := os.ReadFile(h.record())
					if err != nil {
						t.Fatal(err)
					}
					h.write(h.record(), bytes.Replace(text, []byte(`"stage":"Trying"`), []byte(test.verdict), 1))
				}
				h.write(trial.Candidate(h.installed(), order.SHA256), []byte("left"))
				err := h.run(func() {
					if test.begins {
						h.want("", "", "") // it does not try anything now
					} else {
						if test.stage == upgrades.Upgraded {
							h.want("", "", "") // its kubelet has not said that it is ready
							h.condition(corev1.ConditionTrue, time.Now())
						}
						h.want("1", test.stage, test.message)
					}
					if h.beside() != "" {
						t.Errorf("left is %s", h.beside())
					}
					h.send(order)
				})
				h.want("1", test.stage, test.message)
				if errors.Is(err, trial.ErrBegin) != test.begins {
					t.Errorf("got %v", err)
				}
				if r, err := trial.Read(h.record()); err != nil || test.begins && r.Attempts != test.attempts+1 || !test.begins && r.Attempts != test.attempts {
					t.Errorf("got %+v, %v", r, err)
				}
			})
		})
	}
}

// TestInstalled has an order to run what runs.
func TestInstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		order := h.order("1", script(oldVersion))
		order.Version, h.served = oldVersion, nil
		err := h.run(func() {
			h.condition(corev1.ConditionTrue, time.Now())
			h.send(order)
		})
		if err != nil {
			t.Error(err)
		}
		h.want("1", upgrades.Upgraded, "")
	})
}

// TestRefused has orders that cannot be carried out. Nothing stops, and a later order is carried
// out.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		content []byte
		set     func(*host, *upgrades.Order)
		message string
	}{
		"another version": {content: script("v1.36.0+kedge.1"), message: "the executable that servers have as " + newVersion + " cannot be used: it is v1.36.0+kedge.1"},
		"no kedge":        {content: []byte("#!/bin/sh\necho hello\n"), message: "it is not a kedge"},
		"does not run":    {content: []byte("#!/bin/sh\necho wrong processor >&2\nexit 1\n"), message: "it does not run here: exit status 1 wrong processor"},
		"no executable":   {content: []byte("hello"), message: "it does not run here"},
		"no room":         {content: script(newVersion), set: func(_ *host, o *upgrades.Order) { o.Size = 1 << 60 }, message: "MiB are free: free some space"},
		"cannot be written": {content: script(newVersion), set: func(h *host, o *upgrades.Order) {
			if err := os.MkdirAll(filepath.Join(trial.Candidate(h.installed(), o.SHA256), "full"), 0o755); err != nil {
				h.Fatal(err)
			}
		}, message: "has to lie beside the installed one: "},
		"replaced": {content: script(newVersion), set: func(h *host, _ *upgrades.Order) {
			h.cfg.Own = filepath.Join(h.folder, "own")
			h.write(h.cfg.Own, nil)
		}, message: "is not the one that runs: restart kedge"},
		"mounted": {content: script(newVersion), set: func(h *host, _ *upgrades.Order) {
			if err := unix.Mount(h.installed(), h.installed(), "", unix.MS_BIND, ""); err != nil {
				h.Skip("needs root to mount: ", err)
			}
			h.Cleanup(func() { _ = unix.Unmount(h.installed(), unix.MNT_DETACH) })
		}, message: "something is mounted at "},
		"no record can be kept": {content: script(newVersion), set: func(h *host, _ *upgrades.Order) { h.write(filepath.Dir(h.record()), nil) }, message: "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				order := h.order("1", test.content)
				err := h.run(func() {
					if test.set != nil {
						test.set(h, &order)
					}
					h.send(order, order)
				})
				if err != nil {
					t.Error(err)
				}
				h.want("1", upgrades.Refused, test.message)
				if test.set == nil && h.beside() != "" {
					t.Errorf("left is %s", h.beside())
				}
			})
		})
	}
}

// TestAnotherOrder has an order after one that was refused.
func TestAnotherOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		err := h.run(func() {
			h.send(h.order("1", script("v1.36.0+kedge.1")))
			h.want("1", upgrades.Refused, "it is v1.36.0")
			h.serve()
			h.send(upgrades.Order{}, h.order("2", script(newVersion)))
		})
		h.want("2", upgrades.Trying, "")
		if !errors.Is(err, trial.ErrBegin) {
			t.Errorf("got %v", err)
		}
	})
}

// TestFetching has servers that have nothing, then something else, and then the executable.
func TestFetching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		content := script(newVersion)
		order := h.order("1", content)
		h.serve()
		err := h.run(func() {
			h.send(order)
			h.want("1", upgrades.Fetching, "file does not exist")
			h.serve([]byte("damaged"))
			time.Sleep(loop.LastWait)
			h.settle()
			h.want("1", upgrades.Fetching, "it is damaged, or another one")
			if got, err := os.Stat(trial.Candidate(h.installed(), order.SHA256)); err != nil || got.Mode() != 0o600 {
				t.Errorf("what is damaged can be executed: %v, %v", got, err)
			}
			h.serve(bytes.Repeat(content, 2))
			time.Sleep(loop.LastWait)
			h.settle()
			h.want("1", upgrades.Fetching, fmt.Sprintf("it has more than %d bytes", len(content)))
			h.serve(content)
			time.Sleep(2 * loop.LastWait)
			h.settle()
		})
		if !errors.Is(err, trial.ErrBegin) {
			t.Errorf("got %v", err)
		}
		warnings := 0
		for _, entry := range h.told.AllEntries() {
			if entry.Level == logrus.WarnLevel {
				warnings++
			}
		}
		if warnings != 3 {
			t.Errorf("%d warnings for three faults", warnings)
		}
	})
}

// TestWithdrawn withdraws an order while the node gets the executable.
func TestWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		order := h.order("1", script(newVersion))
		h.serve(nil, script(newVersion))
		err := h.run(func() {
			h.send(order)
			h.want("1", upgrades.Fetching, "")
			if h.beside() == "" {
				t.Error("it gets nothing")
			}
			h.send(upgrades.Order{})
			if h.beside() != "" {
				t.Errorf("left is %s", h.beside())
			}
			time.Sleep(time.Hour)
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestReport has an API that fails for a while, and a Node that is registered anew.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		order := h.order("1", script("v1.36.0+kedge.1"))
		fail := func(fault error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.fault = fault
		}
		err := h.run(func() {
			fail(errors.New("no API"))
			h.send(order)
			time.Sleep(10 * time.Second)
			h.want("", "", "")
			fail(nil)
			time.Sleep(loop.LastWait)
			h.settle()
			h.want("1", upgrades.Refused, "it is v1.36.0")

			nodes := h.api.CoreV1().Nodes()
			if err := nodes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			h.settle()
			if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "2"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			h.settle()
			h.want("1", upgrades.Refused, "it is v1.36.0")
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestOnTrial has a new executable on trial, which says to its guard whether the Node is ready.
// It follows no orders.
func TestOnTrial(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	// This name is a part of what versions of kedge agree on.
	t.Setenv("KEDGE_UPGRADE_TRIAL", fmt.Sprint(write.Fd()))
	child := trial.FromEnvironment()
	if !child.Running() {
		t.Fatal("it is not on trial")
	}
	defer write.Close()
	child.Components()
	lines := bufio.NewScanner(read)
	says := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Errorf("it says %q, want %q", lines.Text(), want)
		}
	}
	says("waiting for its Node")
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.cfg.Trial = child
		order := h.order("1", script(newVersion))
		if _, err := trial.Begin(h.record(), order); err != nil {
			t.Fatal(err)
		}
		candidate := trial.Candidate(h.installed(), order.SHA256)
		h.write(candidate, script(newVersion))
		// That was the kedge before.
		h.condition(corev1.ConditionTrue, time.Now().Add(-time.Minute))
		err := h.run(func() {
			says("waiting for the kubelet, which has not said")
			h.want("1", upgrades.Trying, "")
			h.condition(corev1.ConditionFalse, time.Now())
			says("waiting for the Node, which is not ready: no runtime")
			h.condition(corev1.ConditionTrue, time.Now())
			says("ready")
			h.condition(corev1.ConditionFalse, time.Now())
			says("waiting for the Node, which is not ready: no runtime")
			select {
			case h.orders <- order:
				t.Error("it follows orders")
			default:
			}
		})
		if err != nil || h.beside() != filepath.Base(candidate) {
			t.Errorf("got %v, beside is %s", err, h.beside())
		}
	})
}
