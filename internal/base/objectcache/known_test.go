package objectcache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestUntilKnown asks until the kind is known, and does not ask again after another fault or the end of its context.
func TestUntilKnown(t *testing.T) {
	unknown := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "")
	for name, test := range map[string]struct {
		answers []error
		end     bool
	}{
		"known":        {answers: []error{nil}},
		"known later":  {answers: []error{unknown, unknown, nil}},
		"other faults": {answers: []error{unknown, errors.New("no connection")}},
		"ended":        {answers: []error{unknown}, end: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				asked := 0
				UntilKnown(ctx, func(context.Context) error {
					if test.end {
						cancel()
					}
					asked++
					return test.answers[asked-1]
				})
				if asked != len(test.answers) {
					t.Errorf("it asked %d times, want %d", asked, len(test.answers))
				}
			})
		})
	}
}
