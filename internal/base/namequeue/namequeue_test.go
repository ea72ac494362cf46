package namequeue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestWork has a name fail once, and one fail at the end.
func TestWork(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	q := New("test", time.Millisecond, time.Millisecond)
	q.AddObject(&metav1.ObjectMeta{Namespace: "a", Name: "fails"})
	var looked, failed []string
	q.Work(ctx, func(ctx context.Context, name cache.ObjectName) error {
		looked = append(looked, name.String())
		switch {
		case name.Name == "last":
			cancel()
			q.ShutDown()
			return ctx.Err()
		case len(looked) == 1:
			return errors.New("not yet")
		}
		q.AddObject(cache.DeletedFinalStateUnknown{Key: "last"})
		return nil
	}, func(name cache.ObjectName, err error) { failed = append(failed, name.String()+": "+err.Error()) })
	if want := []string{"a/fails", "a/fails", "last"}; !slices.Equal(looked, want) {
		t.Errorf("looked at %v, want %v", looked, want)
	}
	if want := []string{"a/fails: not yet"}; !slices.Equal(failed, want) {
		t.Errorf("failures %v, want %v", failed, want)
	}
}
