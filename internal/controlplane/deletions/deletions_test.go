package deletions

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/kedge-dev/kedge/internal/base/deletion"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// TestNotes deletes as several users. The plugin must note each user that is no part of Kubernetes. Each note must end by itself.
func TestNotes(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		store := sqlite.New(sqlite.Config{Dir: t.TempDir(), Socket: filepath.Join(t.TempDir(), "s")})
		ctx, cancel := context.WithCancel(context.Background())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- store.Run(ctx, func() { close(ready) }) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		<-ready
		testNotes(t, store.Endpoint())
	})
	t.Run("etcd", func(t *testing.T) { testNotes(t, datastore.Endpoint{URL: etcd.Start(t)}) })
}

func testNotes(t *testing.T, endpoint datastore.Endpoint) {
	client, err := datastore.NewClient(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	p := newPlugin(func() (*clientv3.Client, error) { return client, nil })
	long := strings.Repeat("long", 100)
	for _, r := range []request{
		{by: "alice", uid: "u1"},
		{by: "bob", uid: "u1"}, // alice was first
		{by: "bob", uid: "u2"},
		{by: "carol", uid: "u3", dryRun: true},
		{by: "carol", uid: "u4", resource: "events"},
		{by: "carol", uid: "u5", subresource: "status"},
		{by: "system:serviceaccount:kube-system:generic-garbage-collector", uid: "u6"},
		{by: "system:serviceaccount:argocd:argocd", uid: "u7"},
		{by: "system:node:one", uid: "u8"},
		{by: long, uid: "u9"},
	} {
		if err := p.Validate(t.Context(), r.attributes(), nil); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	answer, err := client.Get(t.Context(), deletion.Prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, kv := range answer.Kvs {
		got[string(kv.Key)] = string(kv.Value)
		if kv.Lease == 0 {
			t.Errorf("%s stays for ever", kv.Key)
		}
	}
	want := map[string]string{"u1": "alice", "u2": "bob", "u7": "system:serviceaccount:argocd:argocd", "u9": long[:maxName]}
	for uid, by := range want {
		if key := "/kedge/deletions/services/shop/web/" + uid; got[key] != by {
			t.Errorf("%s is %q, want %q", key, got[key], by)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// request is one to delete a Service.
type request struct {
	by, uid, resource, subresource string
	// namespace is shop if it is empty.
	namespace string
	dryRun    bool
}

func (r request) attributes() admission.Attributes {
	resource := corev1.SchemeGroupVersion.WithResource("services")
	if r.resource != "" {
		resource.Resource = r.resource
	}
	namespace := cmp.Or(r.namespace, "shop")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", UID: types.UID(r.uid)}}
	return admission.NewAttributesRecord(nil, service, corev1.SchemeGroupVersion.WithKind("Service"), namespace, "", resource, r.subresource,
		admission.Delete, &metav1.DeleteOptions{}, r.dryRun, &user.DefaultInfo{Name: r.by})
}

// TestDatastoreAway wants objects to be deleted, and a warning, if the note cannot be written.
func TestDatastoreAway(t *testing.T) {
	p := newPlugin(func() (*clientv3.Client, error) { return nil, errors.New("the datastore is away") })
	var said strings.Builder
	logger := logrus.New()
	logger.SetOutput(&said)
	p.log = logrus.NewEntry(logger)
	for range 3 {
		if err := p.Validate(t.Context(), request{by: "alice", uid: "u1"}.attributes(), nil); err != nil {
			t.Error(err)
		}
	}
	if text := said.String(); strings.Count(text, "Cannot note who deletes objects, such as services web: the datastore is away") != 1 {
		t.Errorf("the log says %s", text)
	}
}

// TestManyDeletions deletes very often in one namespace. The plugin must write a bounded number of notes. Another namespace must still get its own.
func TestManyDeletions(t *testing.T) {
	tried := 0
	p := newPlugin(nil)
	p.connect = func() (*clientv3.Client, error) {
		tried++
		return nil, errors.New("the datastore is away")
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	p.log = logrus.NewEntry(logger)
	for range 10 * notesAtOnce {
		if err := p.Validate(t.Context(), request{by: "alice", uid: "u1"}.attributes(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if tried < notesAtOnce || tried > 2*notesAtOnce {
		t.Errorf("%d notes were tried at once", tried)
	}
	before := tried
	if err := p.Validate(t.Context(), request{by: "bob", uid: "u2", namespace: "other"}.attributes(), nil); err != nil || tried != before+1 {
		t.Errorf("another namespace has %d notes, %v", tried-before, err)
	}
}
