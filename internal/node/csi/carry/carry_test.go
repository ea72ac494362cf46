package carry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// world is a driver and a server that write down what they are asked.
type world struct {
	mu   sync.Mutex
	said []string
	// there are the volumes of the node. fault is the error of an export, and refused the one of the server.
	there          map[string]string
	fault, refused error
	// busy is how often an export finds that something else is being done with the volume.
	busy atomic.Int32
}

func (w *world) say(format string, values ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, values...))
}

func (w *world) heard() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.said, "; ")
}

func (w *world) Has(name string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.there[name]
	return ok, nil
}

func (w *world) Describe(string) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }

func (w *world) Export(_ context.Context, name string, to io.Writer, _ func(func() error) error) error {
	if w.busy.Add(-1) >= 0 {
		return fmt.Errorf("%s: %w", name, volume.ErrBusy)
	}
	_, err := io.WriteString(to, w.there[name])
	return errors.Join(err, w.fault)
}

func (w *world) Import(_ context.Context, name string, _ json.RawMessage, _ time.Time, _ int64, archive io.Reader) error {
	text, err := io.ReadAll(archive)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there[name] = string(text)
	return err
}

// Await may be called more than once.
func (w *world) Await(name string, _ time.Time, fault error) {
	text := "await " + name
	if fault != nil {
		text += ": " + fault.Error()
	}
	if !strings.HasSuffix(w.heard(), text) {
		w.say("%s", text)
	}
}

func (w *world) Forget(string) {}

func (w *world) Save(_ context.Context, node, volume string, _ json.RawMessage, content io.Reader) error {
	if w.refused != nil {
		return w.refused
	}
	text, err := io.ReadAll(content)
	if err != nil {
		return fmt.Errorf("the node breaks off: %w", err)
	}
	w.say("save %s of %s: %s", volume, node, text)
	return nil
}

func (w *world) Restore(_ context.Context, _, _ string, take func(volumedata.Contents) error) error {
	if w.refused != nil {
		return w.refused
	}
	return take(volumedata.Contents{Archive: strings.NewReader("from the backup")})
}

func (w *world) Tell(_ context.Context, _, volume string, report volumedata.Report) error {
	w.say("tell %s %q", volume, report.Fault)
	return nil
}

// persistent returns a PersistentVolume of a node with an order.
func persistent(name, node, annotation string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation: "2026-11-30T03:00:00Z"}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

func TestCarrier(t *testing.T) {
	full := errors.New("there is not enough space")
	for name, test := range map[string]struct {
		order          *corev1.PersistentVolume
		there          string
		fault, refused error
		want, left     string
	}{
		"a backup":                 {persistent("v", "here", volumedata.BackupAnnotation), "data", nil, nil, "save v of here: data", "data"},
		"a backup that fails here": {persistent("v", "here", volumedata.BackupAnnotation), "data", full, nil, `tell v "there is not enough space"`, "data"},
		"at its beginning":         {persistent("v", "here", volumedata.BackupAnnotation), "", full, nil, `tell v "there is not enough space"`, ""},
		"one that fails there":     {persistent("v", "here", volumedata.BackupAnnotation), "data", nil, errors.New("the bucket is full"), `tell v "the bucket is full"`, "data"},
		"a restore":                {persistent("v", "here", volumedata.RestoreAnnotation), "-", nil, nil, `await v; tell v ""`, "from the backup"},
		"a restore that fails":     {persistent("v", "here", volumedata.RestoreAnnotation), "-", nil, errors.New("the bucket is away"), "await v; await v: restore from the backup: the bucket is away", ""},
		"of what is there":         {persistent("v", "here", volumedata.RestoreAnnotation), "newer", nil, nil, `tell v ""`, "newer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{there: map[string]string{"v": test.there}, fault: test.fault, refused: test.refused}
			if test.there == "-" {
				w.there = map[string]string{}
			}
			// The volume of another node, and one without an order, come first.
			client := fake.NewClientset(persistent("a", "elsewhere", volumedata.BackupAnnotation), persistent("b", "here", "other"), test.order)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := New(Config{Node: "here", Driver: w, Server: w, Informers: objectcache.Own(client)}).Run(ctx, func() {}); err != nil {
					t.Error(err)
				}
			})
			wait(t, func() bool { return strings.Contains(w.heard(), test.want) })
			cancel()
			running.Wait()
			if got := w.heard(); got != test.want {
				t.Errorf("heard %q, want %q", got, test.want)
			}
			if w.there["v"] != test.left {
				t.Errorf("the volume has %q, want %q", w.there["v"], test.left)
			}
		})
	}
}

// TestBusy checks that a volume with which something else is being done has another turn.
func TestBusy(t *testing.T) {
	w := &world{there: map[string]string{"v": "data"}}
	w.busy.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		client := fake.NewClientset(persistent("v", "here", volumedata.BackupAnnotation))
		if err := New(Config{Node: "here", Driver: w, Server: w, Informers: objectcache.Own(client)}).Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
	})
	wait(t, func() bool { return w.heard() == "save v of here: data" })
	cancel()
	running.Wait()
}

// TestNotAsked checks that an order that was withdrawn is not tried again.
func TestNotAsked(t *testing.T) {
	w := &world{there: map[string]string{"v": "data"}, refused: volumedata.ErrNotAsked}
	c := New(Config{Node: "here", Driver: w, Server: w})
	for what, do := range map[string]func(context.Context, string) error{"save": c.save, "restore": c.restore} {
		delete(w.there, "v")
		if what == "save" {
			w.there["v"] = "data"
		}
		if err := do(t.Context(), "v"); !errors.Is(err, volumedata.ErrNotAsked) || w.heard() != "" {
			t.Errorf("%s: %v, heard %q", what, err, w.heard())
		}
	}
}

// wait waits until something is true.
func wait(t *testing.T, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("it did not happen within 10 seconds")
}
