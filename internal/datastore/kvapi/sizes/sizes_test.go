package sizes

import (
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestCheck(t *testing.T) {
	write := Change([]byte("/registry/configmaps/default/a"), make([]byte, 1000), 7, 0)
	if err := CheckTxn(write, 2000); err != nil {
		t.Error(err)
	}
	err := CheckTxn(write, 1000)
	if !apierrors.IsRequestEntityTooLargeError(err) || status.Code(err) != codes.InvalidArgument {
		t.Fatalf("got %T %v", err, err)
	}
	for _, want := range []string{"/registry/configmaps/default/a needs ", "at most 1000 ", "divide it"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

func TestObjects(t *testing.T) {
	o := NewObjects(500)
	note := func(kind mvccpb.Event_EventType, key string, size int) {
		o.Note(&mvccpb.Event{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte(key), Value: make([]byte, size), ModRevision: 9}})
	}
	note(mvccpb.Event_PUT, "shrunk", 1000)
	note(mvccpb.Event_PUT, "shrunk", 10)
	note(mvccpb.Event_PUT, "gone", 1000)
	note(mvccpb.Event_DELETE, "gone", 0)
	note(mvccpb.Event_PUT, "small", 300)
	if err := o.Err("Do %d."); err != nil {
		t.Error(err)
	}
	for i := range named + 2 {
		note(mvccpb.Event_PUT, fmt.Sprintf("large-%02d", i), 1000+i)
	}
	err := fmt.Sprint(o.Err("Set it to %d."))
	largest := written(&mvccpb.KeyValue{Key: []byte("large-21"), Value: make([]byte, 1021), ModRevision: 9})
	for _, want := range []string{"at most 500 bytes", fmt.Sprintf(": large-21 (%d bytes), large-20 ", largest), "large-02 ", "and 2 more. ", fmt.Sprintf("Set it to %d.", largest)} {
		if !strings.Contains(err, want) {
			t.Errorf("no %q in %s", want, err)
		}
	}
	if strings.Contains(err, "large-01") || strings.Contains(err, "shrunk") || strings.Contains(err, "gone") {
		t.Error(err)
	}
}
