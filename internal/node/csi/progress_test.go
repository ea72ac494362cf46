package csi

import (
	"errors"
	"testing"
	"time"
)

// TestProgress checks what the pods of a volume are told while its contents come.
func TestProgress(t *testing.T) {
	const begins = "the data of the volume come from the backup of 2026-11-30 03:00 UTC"
	for name, test := range map[string]struct {
		p    *progress
		done int64
		want string
	}{
		"not begun":     {&progress{}, 0, begins},
		"a third":       {&progress{size: 3 << 30, began: time.Now().Add(-time.Minute)}, 1 << 30, begins + ": 33 % of 3.0 GiB, about 2m0s left"},
		"at the end":    {&progress{size: 3 << 20, began: time.Now().Add(-time.Minute)}, 3 << 20, begins + ": 100 % of 3.0 MiB, about 0s left"},
		"a failed call": {&progress{fault: errors.New("there is not enough space")}, 0, begins + ", which fails: there is not enough space. kedge tries again"},
	} {
		test.p.of = time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
		test.p.done.Store(test.done)
		if got := test.p.String(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
