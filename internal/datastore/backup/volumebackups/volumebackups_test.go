package volumebackups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// rig is a cluster with a backup in a folder.
type rig struct {
	*controller
	t      *testing.T
	now    time.Time
	key    *chain.RecoveryKey
	events *record.FakeRecorder
	// away is the error of the place.
	away error
}

func newRig(t *testing.T, objects ...runtime.Object) *rig {
	t.Helper()
	at, err := place.Open(t.Context(), "file://"+t.TempDir(), config.S3{}, nil)
	must(t, err)
	must(t, at.Prepare(t.Context()))
	key, err := chain.NewRecoveryKey()
	must(t, err)
	writer, err := key.Appoint(1, nil, time.Now())
	must(t, err)
	store, err := volumes.New(at, writer)
	must(t, err)
	r := &rig{t: t, now: time.Date(2026, 11, 30, 2, 59, 0, 0, time.UTC), key: key, events: record.NewFakeRecorder(100)}
	kinds := map[schema.GroupVersionResource]string{Resource: "VolumeBackupList"}
	r.controller = &controller{VolumeBackups: &VolumeBackups{
		cfg: Config{
			Store: func(context.Context, kubernetes.Interface) (*volumes.Store, error) { return store, r.away },
			Keep:  volumes.Keep{All: 24 * time.Hour, Daily: 48 * time.Hour}, Inherited: filepath.Join(t.TempDir(), "inherited"), Now: func() time.Time { return r.now },
		},
		log: logrus.WithField("component", "test"), api: fake.NewClientset(objects...),
		objects:   objectsOf(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)),
		restoring: make(chan struct{}, maxRestoring),
	}, events: r.events}
	return r
}

func objectsOf(client *dynamicfake.FakeDynamicClient) objects {
	return objects{client.Resource(Resource)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// turns lets the controller look as often as something may have changed.
func (r *rig) turns() {
	r.t.Helper()
	for range 4 {
		r.known = cache.NewStore(cache.MetaNamespaceKeyFunc)
		found, err := r.objects.List(r.t.Context(), metav1.ListOptions{})
		must(r.t, err)
		for i := range found.Items {
			must(r.t, r.known.Add(&found.Items[i]))
		}
		_, err = r.turn(r.t.Context())
		must(r.t, err)
	}
}

func (r *rig) make(namespace, name, claim string) {
	r.t.Helper()
	must(r.t, r.objects.create(r.t.Context(), &VolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(r.now)}, Spec: Spec{claim}}))
}

func (r *rig) status(namespace, name string) Status {
	r.t.Helper()
	v, err := r.objects.get(r.t.Context(), namespace, name)
	must(r.t, err)
	return v.Status
}

func (r *rig) annotation(volume, key string) string {
	r.t.Helper()
	v, err := r.api.CoreV1().PersistentVolumes().Get(r.t.Context(), volume, metav1.GetOptions{})
	must(r.t, err)
	return v.Annotations[key]
}

// bound returns a claim and its volume on a node.
func bound(namespace, name, node string, annotations map[string]string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	uid, class := types.UID(namespace+"-"+name), "local"
	annotations[localstorage.ProvisionerAnnotation] = localstorage.Driver
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, Annotations: annotations},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-" + name, StorageClassName: &class},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver}},
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: name, UID: uid},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
	return claim, volume
}

// TestBackupAndRestore goes from an order to the contents on a new machine.
func TestBackupAndRestore(t *testing.T) {
	claim, volume := bound("a", "data", "node-1", map[string]string{})
	r := newRig(t, claim, volume)
	content := bytes.Repeat([]byte("contents "), 1000)
	r.make("a", "one", "data")
	r.turns()
	if s := r.status("a", "one"); s.Phase != Running || s.Node != "node-1" || r.annotation("pvc-data", volumedata.BackupAnnotation) != "a/one" {
		t.Fatalf("the order is %+v, %q", s, r.annotation("pvc-data", volumedata.BackupAnnotation))
	}
	// Nobody but the node of the volume may send it.
	for node, volume := range map[string]string{"node-2": "pvc-data", "node-1": "pvc-other"} {
		if err := r.Save(t.Context(), node, volume, json.RawMessage(`{}`), bytes.NewReader(content)); !errors.Is(err, volumedata.ErrNotAsked) {
			t.Errorf("%s sends %s: %v", node, volume, err)
		}
	}
	must(t, r.Save(t.Context(), "node-1", "pvc-data", json.RawMessage(`{"size":7}`), bytes.NewReader(content)))
	s := r.status("a", "one")
	if s.Phase != Completed || s.Version == nil || s.Size != "8.8 KiB" || r.annotation("pvc-data", volumedata.BackupAnnotation) != "" {
		t.Fatalf("the end is %+v", s)
	}
	if err := r.Save(t.Context(), "node-1", "pvc-data", json.RawMessage(`{}`), bytes.NewReader(content)); !errors.Is(err, volumedata.ErrNotAsked) {
		t.Errorf("a second time: %v", err)
	}

	store, err := r.cfg.Store(t.Context(), nil)
	must(t, err)
	version, err := store.Version(t.Context(), "pvc-data", *s.Version)
	must(t, err)
	secret, err := version.OpenKey(r.key)
	must(t, err)
	text, err := json.Marshal(map[string]Lost{"pvc-data": {*s.Version, version.Time, secret}, "pvc-gone": {*s.Version, version.Time, secret}})
	must(t, err)
	must(t, os.WriteFile(r.cfg.Inherited, text, 0o600))
	must(t, r.inherit(t.Context()))
	must(t, r.inherit(t.Context()))
	if at := r.annotation("pvc-data", volumedata.RestoreAnnotation); at != "2026-11-30T02:59:00Z" {
		t.Errorf("the node is told %q", at)
	}
	take := func(into *[]byte) func(volumedata.Contents) error {
		return func(c volumedata.Contents) (err error) {
			if string(c.About) != `{"size":7}` || c.Size != int64(len(content)) {
				t.Errorf("the contents are %s, %d bytes", c.About, c.Size)
			}
			*into, err = io.ReadAll(c.Archive)
			return err
		}
	}
	var got []byte
	if err := r.Restore(t.Context(), "node-2", "pvc-data", take(&got)); !errors.Is(err, volumedata.ErrNotAsked) {
		t.Errorf("another node gets the contents: %v", err)
	}
	must(t, r.Restore(t.Context(), "node-1", "pvc-data", take(&got)))
	if !bytes.Equal(got, content) {
		t.Errorf("got %d bytes", len(got))
	}
}

// TestForeignVolume tries to get the volume of another namespace by a claim that names it.
func TestForeignVolume(t *testing.T) {
	claim, volume := bound("victim", "data", "node-1", map[string]string{})
	thief := claim.DeepCopy()
	thief.Namespace, thief.Name, thief.UID = "thief", "mine", "thief-mine"
	pending, _ := bound("thief", "pending", "node-1", map[string]string{})
	pending.Status.Phase = corev1.ClaimPending
	_, other := bound("thief", "nfs", "node-1", map[string]string{})
	nfs, _ := bound("thief", "nfs", "node-1", map[string]string{})
	other.Spec.CSI.Driver = "nfs"
	r := newRig(t, claim, volume, thief, pending, nfs, other)
	for name, want := range map[string]string{"mine": "has no volume", "pending": "has no volume yet", "nfs": "not one of the driver", "none": "there is no claim"} {
		r.make("thief", name, name)
		r.turns()
		if s := r.status("thief", name); s.Phase != Failed || !strings.Contains(s.Message, want) {
			t.Errorf("claim %s: %+v, want %q", name, s, want)
		}
		if event := <-r.events.Events; !strings.Contains(event, "VolumeBackupFailed") {
			t.Errorf("claim %s: event %s", name, event)
		}
	}
	if r.annotation("pvc-data", volumedata.BackupAnnotation) != "" {
		t.Error("the node was asked for the volume of another namespace")
	}
}

// TestFaults checks what a VolumeBackup says if something fails, and that the next one has its turn.
func TestFaults(t *testing.T) {
	claim, volume := bound("a", "data", "node-1", map[string]string{})
	r := newRig(t, claim, volume)
	for _, name := range []string{"place", "node", "silent", "next"} {
		r.make("a", name, "data")
		r.now = r.now.Add(time.Second)
	}
	r.turns()
	r.away = errors.New("the bucket is full")
	if err := r.Save(t.Context(), "node-1", "pvc-data", json.RawMessage(`{}`), strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "the bucket is full") {
		t.Errorf("the node hears %v", err)
	}
	r.away = nil
	r.turns()
	must(t, r.Tell(t.Context(), "node-1", "pvc-data", volumedata.Report{Fault: "there is not enough space\x1b[2J" + strings.Repeat("x", 60<<10)}))
	r.turns()
	r.now = r.now.Add(silence + time.Minute)
	r.turns()
	for name, want := range map[string]string{"place": "the bucket is full", "node": "there is not enough space", "silent": "node node-1 has said nothing"} {
		if s := r.status("a", name); s.Phase != Failed || !strings.Contains(s.Message, want) {
			t.Errorf("%s: %+v, want %q", name, s, want)
		}
	}
	if s := r.status("a", "next"); s.Phase != Running {
		t.Errorf("the next one is %+v", s)
	}
	missing := func(want ...string) {
		t.Helper()
		found, err := r.Missing(t.Context())
		must(t, err)
		var got []string
		for _, v := range found {
			got = append(got, v.Namespace+"/"+v.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("missing are %v, want %v", got, want)
		}
	}
	if s := r.status("a", "node"); strings.Contains(s.Message, "\x1b") || len(s.Message) > maxFault+200 {
		t.Errorf("the status has %d bytes that a node has told: %.80q", len(s.Message), s.Message)
	}
	missing("a/silent") // the one that runs tells nothing yet
	r.make("a", "wrong", "none")
	r.now = r.now.Add(time.Second)
	must(t, r.Save(t.Context(), "node-1", "pvc-data", json.RawMessage(`{}`), strings.NewReader("x")))
	r.turns()
	missing()
}

// TestTurns checks that no namespace keeps the others waiting, whatever it has.
func TestTurns(t *testing.T) {
	var all []*VolumeBackup
	add := func(namespace, name string, started int64) {
		v := &VolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if started > 0 {
			at := metav1.Unix(started, 0)
			v.Status = Status{Phase: Failed, StartTime: &at}
		}
		all = append(all, v)
	}
	add("greedy", "done", 100)
	for _, name := range []string{"one", "two", "three"} {
		add("greedy", name, 0)
	}
	add("old", "done", 50)
	add("old", "a", 0)
	add("new", "b", 0)
	var order []string
	for started := int64(200); ; started++ {
		v := nextOf(all)
		if v == nil {
			break
		}
		order = append(order, v.Name)
		at := metav1.Unix(started, 0)
		v.Status = Status{Phase: Completed, StartTime: &at}
	}
	if want := []string{"b", "a", "one", "two", "three"}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
}

// TestTriedSoon has an API that does not answer once. The next turn comes as soon as after any failure, and not on the next day.
func TestTriedSoon(t *testing.T) {
	claim, volume := bound("default", "data", "node-1", map[string]string{})
	r := newRig(t, claim, volume)
	r.make("default", "one", "data")
	found, err := r.objects.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	r.known = cache.NewStore(cache.MetaNamespaceKeyFunc)
	must(t, r.known.Add(&found.Items[0]))
	r.api.(*fake.Clientset).PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("the API is busy"))
	})
	if next, err := r.turn(t.Context()); err == nil || next != (loop.Next{}) {
		t.Errorf("the next turn is %v, after %v", next, err)
	}
}

// TestGivenUp sends a volume so slowly that the controller gives up the backup, after which its pieces may be removed. When the node has sent the rest, the
// VolumeBackup must stay Failed.
func TestGivenUp(t *testing.T) {
	claim, volume := bound("a", "data", "node-1", map[string]string{})
	r := newRig(t, claim, volume)
	r.make("a", "slow", "data")
	r.turns()
	late := readerFunc(func([]byte) (int, error) {
		r.now = r.now.Add(silence + time.Minute)
		r.turns()
		return 0, io.EOF
	})
	must(t, r.Save(t.Context(), "node-1", "pvc-data", json.RawMessage(`{}`), late))
	if s := r.status("a", "slow"); s.Phase != Failed || s.Version != nil {
		t.Errorf("what was given up is %+v", s)
	}
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestSchedule checks which claims the schedule takes, and what is pruned.
func TestSchedule(t *testing.T) {
	var objects []runtime.Object
	for name, annotations := range map[string]map[string]string{"plain": {}, "out": {ChosenAnnotation: "false"}, "in": {ChosenAnnotation: "true"}, "by-class": {}} {
		claim, volume := bound("a", name, "node-1", annotations)
		if name == "in" || name == "by-class" {
			*claim.Spec.StorageClassName = "without"
		}
		objects = append(objects, claim, volume)
	}
	foreign, _ := bound("a", "foreign", "node-1", map[string]string{})
	foreign.Annotations[localstorage.ProvisionerAnnotation] = "nfs"
	objects = append(objects, foreign, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "without"}, Parameters: map[string]string{localstorage.BackupParameter: "false"}})
	r := newRig(t, objects...)
	schedule, err := cron.ParseStandard("0 3 * * *")
	must(t, err)
	r.schedule, r.next = schedule, schedule.Next(r.now)
	r.turns()
	if all := r.names(); len(all) > 0 {
		t.Errorf("before the time there are %v", all)
	}
	r.now = r.now.Add(2 * time.Minute)
	r.turns()
	if got, want := r.names(), []string{"in-20261130-0300", "plain-20261130-0300"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	r.next = r.now
	r.turns()
	if names := r.names(); len(names) != 2 {
		t.Errorf("while those wait, the schedule has made %v", names)
	}
	for _, name := range []string{"in", "plain"} {
		r.turns()
		must(t, r.Save(t.Context(), "node-1", "pvc-"+name, json.RawMessage(`{}`), strings.NewReader(name)))
	}
	// The claim of one is deleted with its volume. Its versions are kept as long as others.
	must(t, r.api.CoreV1().PersistentVolumes().Delete(t.Context(), "pvc-in", metav1.DeleteOptions{}))
	r.schedule, r.next = nil, time.Time{}
	r.now = r.now.Add(23 * time.Hour)
	r.turns()
	if len(r.names()) != 2 {
		t.Errorf("after a day there are %v", r.names())
	}
	r.now = r.now.Add(72 * time.Hour)
	r.turns()
	if got := r.names(); !slices.Equal(got, []string{"plain-20261130-0300"}) {
		t.Errorf("at the end there are %v, want the newest of the volume that is there", got)
	}
}

func (r *rig) names() (names []string) {
	r.t.Helper()
	found, err := r.objects.List(r.t.Context(), metav1.ListOptions{})
	must(r.t, err)
	for _, object := range found.Items {
		names = append(names, object.GetName())
	}
	slices.Sort(names)
	return names
}

// TestRestored checks that the keys of volumes are forgotten one after the other.
func TestRestored(t *testing.T) {
	_, one := bound("a", "one", "node-1", map[string]string{})
	_, two := bound("a", "two", "node-1", map[string]string{})
	r := newRig(t, one, two)
	must(t, os.WriteFile(r.cfg.Inherited, []byte(`{"pvc-one": {}, "pvc-two": {}}`), 0o600))
	must(t, r.inherit(t.Context()))
	secrets := r.api.CoreV1().Secrets(metav1.NamespaceSystem)
	for left, name := range []string{"pvc-two", "pvc-one"} {
		if err := r.Tell(t.Context(), "node-2", name, volumedata.Report{}); !errors.Is(err, volumedata.ErrNotAsked) {
			t.Errorf("another node says that %s is there: %v", name, err)
		}
		if secret, err := secrets.Get(t.Context(), restoreSecret, metav1.GetOptions{}); err != nil || len(secret.Data) != 2-left {
			t.Errorf("before %s came back, the Secret has %v, %v", name, secret, err)
		}
		for range 2 { // the answer may be lost
			must(t, r.Tell(t.Context(), "node-1", name, volumedata.Report{}))
		}
		if at := r.annotation(name, volumedata.RestoreAnnotation); at != "" {
			t.Errorf("%s still comes back, as of %s", name, at)
		}
	}
	if _, err := secrets.Get(t.Context(), restoreSecret, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("at the end, the Secret is there: %v", err)
	}
}
