package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// rig runs the component of node a over a fake API, with fake parts.
type rig struct {
	*testing.T
	api     *fake.Clientset
	updates chan routing.Update
	said    *logrustest.Hook
	stop    func()

	mu sync.Mutex
	// diary has what the parts and the API were asked, in order.
	diary []string
	// parts are those that run.
	parts *parts
	// fault is what patches of nodes fail with.
	fault error
	// ready is closed when the component is ready.
	ready chan struct{}
}

// parts are fakes of both parts. Each socket of the state is open, except port 1.
type parts struct {
	*rig
	state   *routing.State
	changes chan struct{}
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.diary = append(r.diary, fmt.Sprintf(format, args...))
}

// read returns the diary, and begins a new one.
func (r *rig) read() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.diary = nil }()
	return strings.Join(r.diary, ", ")
}

type fakeRequests struct{ *parts }

func (f fakeRequests) Set(state *routing.State) { f.note("serve %d routes", len(state.Routes)) }
func (f fakeRequests) Close()                   { f.note("close") }

type fakeSockets struct{ *parts }

func (f fakeSockets) Set(state *routing.State) {
	f.note("open %d sockets", len(state.Sockets))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = state
	f.changes <- struct{}{}
}

func (f fakeSockets) Run(ctx context.Context) {
	<-ctx.Done()
	f.note("end")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rig.parts = nil
}

func (f fakeSockets) Drain() { f.note("drain") }

func (f fakeSockets) Changes() <-chan struct{} { return f.changes }

func (f fakeSockets) Listening() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, socket := range f.state.Sockets {
		if socket.Port > 1 {
			names = append(names, fmt.Sprintf("%d/%s", socket.Port, socket.Transport))
		}
	}
	return names
}

// run runs the component while do runs.
func run(t *testing.T, do func(r *rig), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &rig{T: t, api: fake.NewClientset(objects...), updates: make(chan routing.Update), ready: make(chan struct{}), said: logrustest.NewLocal(logrus.New())}
		r.api.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			patch := action.(clienttesting.PatchAction)
			if action.GetSubresource() != "status" || patch.GetName() != "a" {
				t.Errorf("it patches %s/%s", patch.GetName(), action.GetSubresource())
			}
			_, value, _ := strings.Cut(string(patch.GetPatch()), `"gateway.kedge.dev/listening":`)
			r.note("report %s", strings.TrimSuffix(value, "}}}"))
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.fault != nil, nil, r.fault
		})
		component := New(Config{
			Routes: func(ctx context.Context, apply func(routing.Update) error) error {
				for {
					select {
					case update := <-r.updates:
						if err := apply(update); err != nil {
							t.Error(err)
						}
					case <-ctx.Done():
						return nil
					}
				}
			},
			Parts: func(func() []string) (Requests, Sockets) {
				r.note("make")
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.parts != nil {
					t.Error("there are other parts already")
				}
				r.parts = &parts{rig: r, state: &routing.State{}, changes: make(chan struct{}, 10)}
				return fakeRequests{r.parts}, fakeSockets{r.parts}
			},
			Informers: objectcache.Own(r.api), NodeName: "a", Notice: 3 * time.Second,
		}).(*gateway)
		logger := logrus.New()
		r.said = logrustest.NewLocal(logger)
		component.api, component.log = r.api, logrus.NewEntry(logger)
		ended := make(chan error, 1)
		go func() { ended <- component.Run(ctx, sync.OnceFunc(func() { close(r.ready) })) }()
		r.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Second) // its cache has the nodes
		r.settle()
		do(r)
		r.stop()
		if r.parts != nil {
			t.Error("the parts still run")
		}
	})
}

// breakDown makes patches fail, or succeed again if fault is nil.
func (r *rig) breakDown(fault error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

// settle lets everything happen that is due.
func (r *rig) settle() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// send sends an update, and lets everything happen.
func (r *rig) send(update routing.Update) {
	r.updates <- update
	r.settle()
}

// want compares the diary, and what the Node says.
func (r *rig) want(diary, annotation string) {
	r.Helper()
	if got := r.read(); got != diary {
		r.Errorf("got: %s; want: %s", got, diary)
	}
	node, err := r.api.CoreV1().Nodes().Get(context.Background(), "a", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	if got := node.Annotations[gateways.ListeningAnnotation]; got != annotation {
		r.Errorf("the Node says %q, want %q", got, annotation)
	}
}

func aNode(name, listening string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if listening != "" {
		node.Annotations = map[string]string{gateways.ListeningAnnotation: listening}
	}
	return node
}

// sockets returns an update with TCP sockets, by name. A port 0 removes the socket.
func sockets(whole bool, ports map[string]uint16) routing.Update {
	update := routing.Update{Whole: whole, State: routing.State{Sockets: map[string]*routing.Socket{}}}
	for name, port := range ports {
		if update.Sockets[name] = nil; port > 0 {
			update.Sockets[name] = &routing.Socket{Transport: routing.TCP, Port: port, PublicPort: 80}
		}
	}
	return update
}

// TestServing follows a stream from no socket to two, and back.
func TestServing(t *testing.T) {
	run(t, func(r *rig) {
		r.want("", "")
		r.send(sockets(true, nil))
		r.send(routing.Update{State: routing.State{Routes: map[string]*routing.Route{"r": {Name: "r"}}}})
		r.want("", "")

		r.send(sockets(false, map[string]uint16{"s": 30443}))
		r.want(`make, serve 1 routes, open 1 sockets, report "30443/tcp"`, "30443/tcp")
		r.send(sockets(false, map[string]uint16{"t": 8080, "broken": 1}))
		r.want(`serve 1 routes, open 3 sockets, report "8080/tcp,30443/tcp"`, "8080/tcp,30443/tcp")

		t.Log("after a new connection to a server everything is as it was")
		again := sockets(true, map[string]uint16{"s": 30443, "t": 8080, "broken": 1})
		again.Routes = map[string]*routing.Route{"r": {Name: "r"}}
		r.send(again)
		r.want("", "8080/tcp,30443/tcp")

		t.Log("somebody removes what the Node says")
		if _, err := r.api.CoreV1().Nodes().Update(t.Context(), aNode("a", ""), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle()
		r.want(`report "8080/tcp,30443/tcp"`, "8080/tcp,30443/tcp")

		t.Log("the sockets are gone for a moment, and then for ever")
		r.send(sockets(false, map[string]uint16{"t": 0, "broken": 0}))
		r.want(`serve 1 routes, open 1 sockets, report "30443/tcp"`, "30443/tcp")
		r.send(sockets(false, map[string]uint16{"s": 0}))
		r.want("serve 1 routes, open 0 sockets, report null", "")
		time.Sleep(linger / 2)
		r.send(sockets(false, map[string]uint16{"s": 8081}))
		r.want(`serve 1 routes, open 1 sockets, report "8081/tcp"`, "8081/tcp")
		time.Sleep(linger)
		r.settle()
		r.want("", "8081/tcp")
		r.send(sockets(true, nil))
		r.want("serve 0 routes, open 0 sockets, report null", "")
		time.Sleep(linger)
		r.settle()
		r.want("end, close", "")

		t.Log("a socket comes back")
		r.send(sockets(false, map[string]uint16{"s": 8081}))
		r.want(`make, serve 0 routes, open 1 sockets, report "8081/tcp"`, "8081/tcp")
	}, aNode("a", ""), aNode("b", ""))
}

// TestReady: the component is ready when other nodes know that its sockets are open.
func TestReady(t *testing.T) {
	wantReady := func(r *rig, want bool) {
		r.Helper()
		select {
		case <-r.ready:
			if !want {
				r.Error("the component is ready too early")
			}
		default:
			if want {
				r.Error("the component is not ready")
			}
		}
	}
	t.Run("with sockets", func(t *testing.T) {
		run(t, func(r *rig) {
			r.breakDown(errors.New("no answer"))
			wantReady(r, false)
			r.send(sockets(true, map[string]uint16{"s": 8080}))
			wantReady(r, false)
			r.breakDown(nil)
			time.Sleep(2 * loop.FirstWait)
			wantReady(r, true)
		}, aNode("a", ""))
	})
	t.Run("without sockets", func(t *testing.T) {
		run(t, func(r *rig) {
			wantReady(r, false)
			r.send(sockets(true, nil))
			wantReady(r, true)
		}, aNode("a", ""))
	})
	t.Run("without a word from a server", func(t *testing.T) {
		run(t, func(r *rig) {
			time.Sleep(servePatience / 2)
			wantReady(r, false)
			time.Sleep(servePatience / 2)
			wantReady(r, true)
		}, aNode("a", ""))
	})
}

// TestLeaving stops nodes with and without others that listen.
func TestLeaving(t *testing.T) {
	for name, test := range map[string]struct {
		other string
		port  uint16
		fault error
		want  string
		took  time.Duration
	}{
		"nothing was open":         {"8080/tcp", 1, nil, "end, close", 0},
		"the only node":            {"", 8080, nil, "report null, end, close", 0},
		"another node listens":     {"8080/tcp", 8080, nil, "report null, drain, end, close", 3 * time.Second},
		"nobody can be told of it": {"8080/tcp", 8080, errors.New("no answer"), "report null, end, close", 0},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *rig) {
				r.send(sockets(true, map[string]uint16{"s": test.port}))
				r.read()
				r.breakDown(test.fault)
				began := time.Now()
				r.stop()
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %s, want %s", took, test.took)
				}
				left := ""
				if test.fault != nil {
					left = "8080/tcp"
				}
				r.want(test.want, left)
			}, aNode("a", ""), aNode("b", test.other))
		})
	}
}

// TestLeftBehind has a Node that says what a kedge has left that was killed.
func TestLeftBehind(t *testing.T) {
	run(t, func(r *rig) {
		r.want("report null", "")
		r.stop()
		r.want("", "")
	}, aNode("a", "8080/tcp"))
}

// TestFaults has an API that takes no reports for an hour.
func TestFaults(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", nil)
	for name, test := range map[string]struct {
		fault error
		said  int
	}{"no answer": {errors.New("no answer"), 1}, "forbidden": {forbidden, 0}} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *rig) {
				r.breakDown(test.fault)
				r.send(sockets(true, map[string]uint16{"s": 8080}))
				time.Sleep(time.Hour)
				if attempts := strings.Count(r.read(), "report"); attempts < 60 || attempts > 70 {
					t.Errorf("%d attempts", attempts)
				}
				if entries := r.said.AllEntries(); len(entries) != test.said || len(entries) > 0 && entries[0].Level != logrus.WarnLevel {
					t.Errorf("it said %v", entries)
				}
				r.breakDown(nil)
				time.Sleep(loop.LastWait)
				r.read()
				r.want("", "8080/tcp")
			}, aNode("a", ""))
		})
	}
}

// TestDisabled has a cluster without the gateway.
func TestDisabled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- New(Config{}).Run(ctx, func() { close(ready) }) }()
	<-ready
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
