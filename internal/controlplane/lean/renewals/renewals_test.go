package renewals

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/utils/ptr"
)

const (
	address  = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/one"
	protobuf = runtime.ContentTypeProtobuf
)

// lease returns the Lease of the tests, as its holder gets it.
func lease() *coordinationv1.Lease {
	created := metav1.NewTime(time.Unix(1_800_000_000, 0))
	return &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "kube-node-lease", Name: "one", UID: "a", ResourceVersion: "7", CreationTimestamp: created,
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1", Time: &created, FieldsType: "FieldsV1",
				FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:holderIdentity":{},"f:renewTime":{}}}`)},
			}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("one"), LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &metav1.MicroTime{Time: created.Time}},
	}
}

// internal returns a Lease as the storage has it.
func internal(t *testing.T, lease *coordinationv1.Lease) *coordination.Lease {
	t.Helper()
	converted, err := legacyscheme.Scheme.ConvertToVersion(lease, coordination.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	return converted.(*coordination.Lease)
}

// fakeStorage has one Lease. A failure is what it returns to each update.
type fakeStorage struct {
	storage.Interface
	stored  *coordination.Lease
	failure error
	updates int
}

func (s *fakeStorage) GuaranteedUpdate(_ context.Context, key string, into runtime.Object, _ bool, _ *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object) error {
	if s.failure != nil {
		return s.failure
	}
	if key != "/leases/kube-node-lease/one" {
		return storage.NewKeyNotFoundError(key, 0)
	}
	updated, _, err := update(s.stored.DeepCopy(), storage.ResponseMeta{})
	if err != nil {
		return err
	}
	s.updates++
	s.stored = updated.(*coordination.Lease)
	s.stored.ResourceVersion = "8"
	*into.(*coordination.Lease) = *s.stored
	return nil
}

// fakeAdmission may change or refuse a Lease.
type fakeAdmission struct {
	change  func(*coordination.Lease)
	refusal error
	asked   []string
}

func (*fakeAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Update
}

func (a *fakeAdmission) Admit(_ context.Context, attributes admission.Attributes, _ admission.ObjectInterfaces) error {
	a.asked = append(a.asked, "admit")
	if a.change != nil {
		a.change(attributes.GetObject().(*coordination.Lease))
	}
	return nil
}

func (a *fakeAdmission) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	a.asked = append(a.asked, "validate")
	return a.refusal
}

// server answers as Use makes it answer, without upstream's filters.
type server struct {
	storage   fakeStorage
	admission fakeAdmission
	// passed has the bodies that upstream's handler got.
	passed []string
	http.Handler
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	s.storage.stored = internal(t, lease())
	upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.passed = append(s.passed, string(body))
	})
	config := &genericapiserver.Config{BuildHandlerChainFunc: func(next http.Handler, _ *genericapiserver.Config) http.Handler {
		resolver := genericapiserver.NewRequestInfoResolver(&genericapiserver.Config{})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, err := resolver.NewRequestInfo(r)
			if err != nil {
				t.Error(err)
			}
			next.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
		})
	}}
	Use(config, &Leases{&s.storage, "/leases"}, &s.admission)
	s.Handler = config.BuildHandlerChainFunc(upstream, config)
	return s
}

// ask sends a request, and returns the answer.
func (s *server) ask(t *testing.T, method, path, contentType string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Accept", contentType)
	r.Header.Set("User-Agent", "kubelet/v1.36.3 (linux/amd64)")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func encode(t *testing.T, lease *coordinationv1.Lease, contentType string) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		t.Fatal("no serializer for", contentType)
	}
	encoded, err := runtime.Encode(info.Serializer, lease)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// TestRenewal renews a Lease as a kubelet does, and as most operators do.
func TestRenewal(t *testing.T) {
	for _, contentType := range []string{protobuf, runtime.ContentTypeJSON} {
		s := newServer(t)
		renewed := lease()
		renewed.Spec.RenewTime.Time = renewed.Spec.RenewTime.Add(10 * time.Second)
		w := s.ask(t, http.MethodPut, address+"?timeout=10s", contentType, encode(t, renewed, contentType))
		if w.Code != http.StatusOK || len(s.passed) > 0 || s.storage.updates != 1 {
			t.Fatalf("%s: got %d, %d updates, and %d requests for upstream's handler: %s", contentType, w.Code, s.storage.updates, len(s.passed), w.Body)
		}
		if asked := strings.Join(s.admission.asked, ", "); asked != "admit, validate" {
			t.Errorf("admission was asked to %s", asked)
		}
		answer, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := answer.(*coordinationv1.Lease)
		if !got.Spec.RenewTime.Equal(renewed.Spec.RenewTime) || got.ResourceVersion != "8" || len(got.ManagedFields) != 1 {
			t.Errorf("%s: the answer is %v", contentType, got)
		}
		if !s.storage.stored.Spec.RenewTime.Equal(renewed.Spec.RenewTime) {
			t.Errorf("%s: renewed at %s", contentType, s.storage.stored.Spec.RenewTime)
		}
	}
}

// TestOthers sends what upstream's handler has to answer. It gets the whole request.
func TestOthers(t *testing.T) {
	update := func(change func(*coordinationv1.Lease)) func(*testing.T, *server) []byte {
		return func(t *testing.T, _ *server) []byte {
			changed := lease()
			changed.Spec.RenewTime.Time = changed.Spec.RenewTime.Add(10 * time.Second)
			change(changed)
			return encode(t, changed, protobuf)
		}
	}
	renewal := update(func(*coordinationv1.Lease) {})
	// both changes the Lease before its holder gets it.
	both := func(change func(*coordinationv1.Lease)) func(*testing.T, *server) []byte {
		return func(t *testing.T, s *server) []byte {
			before := lease()
			change(before)
			s.storage.stored = internal(t, before)
			return update(change)(t, s)
		}
	}
	for name, test := range map[string]struct {
		method, path string
		body         func(*testing.T, *server) []byte
	}{
		"a new holder":         {body: update(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("two") })},
		"an older version":     {body: update(func(l *coordinationv1.Lease) { l.ResourceVersion = "6" })},
		"no version":           {body: update(func(l *coordinationv1.Lease) { l.ResourceVersion = "" })},
		"a label":              {body: update(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} })},
		"no time":              {body: update(func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil })},
		"no managed fields":    {body: update(func(l *coordinationv1.Lease) { l.ManagedFields = nil })},
		"another name":         {body: update(func(l *coordinationv1.Lease) { l.Name = "two" })},
		"another Lease's name": {path: strings.Replace(address, "one", "two", 1), body: renewal},
		"another's field":      {body: both(func(l *coordinationv1.Lease) { l.ManagedFields[0].Manager = "kubectl" })},
		"two managers' field": {body: both(func(l *coordinationv1.Lease) {
			applied := l.ManagedFields[0]
			applied.Operation = metav1.ManagedFieldsOperationApply
			l.ManagedFields = append(l.ManagedFields, applied)
		})},
		"nobody's field":  {body: both(func(l *coordinationv1.Lease) { l.ManagedFields = nil })},
		"deleted":         {body: both(func(l *coordinationv1.Lease) { l.DeletionTimestamp = &l.CreationTimestamp })},
		"a dry run":       {path: address + "?dryRun=All", body: renewal},
		"a field manager": {path: address + "?fieldManager=me", body: renewal},
		"a patch":         {method: http.MethodPatch, body: renewal},
		"a read":          {method: http.MethodGet, body: renewal},
		"garbage":         {body: func(*testing.T, *server) []byte { return []byte("garbage") }},
		"too much":        {body: func(*testing.T, *server) []byte { return bytes.Repeat([]byte("x"), 2*maxBytes) }},
		"a later conflict": {body: func(t *testing.T, s *server) []byte {
			s.storage.failure = storage.NewResourceVersionConflictsError("/leases/kube-node-lease/one", 7)
			return renewal(t, s)
		}},
		"changed by admission": {body: func(t *testing.T, s *server) []byte {
			s.admission.change = func(l *coordination.Lease) { l.Labels = map[string]string{"a": "b"} }
			return renewal(t, s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			if test.method == "" {
				test.method = http.MethodPut
			}
			if test.path == "" {
				test.path = address
			}
			body := test.body(t, s)
			s.ask(t, test.method, test.path, protobuf, body)
			if len(s.passed) != 1 || s.passed[0] != string(body) || s.storage.updates != 0 {
				t.Errorf("upstream's handler got %d requests, and %d updates were stored", len(s.passed), s.storage.updates)
			}
		})
	}
}

// TestRefusals has renewals that admission or the datastore refuses.
func TestRefusals(t *testing.T) {
	forbidden := apierrors.NewForbidden(resource.GroupResource(), "one", errors.New("no"))
	for want, prepare := range map[int]func(*server){
		http.StatusForbidden:           func(s *server) { s.admission.refusal = forbidden },
		http.StatusInternalServerError: func(s *server) { s.storage.failure = storage.NewInternalError(errors.New("broken")) },
	} {
		s := newServer(t)
		prepare(s)
		w := s.ask(t, http.MethodPut, address, protobuf, encode(t, lease(), protobuf))
		if w.Code != want || len(s.passed) > 0 || s.storage.updates > 0 {
			t.Errorf("got %d, want %d: %s", w.Code, want, w.Body)
		}
	}
}
