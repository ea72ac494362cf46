package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, test := range []struct {
			sleep, lasts time.Duration
			err          error
		}{
			{10 * time.Second, 10 * time.Second, nil},
			{time.Hour, 50 * time.Second, context.DeadlineExceeded},
			{time.Hour, 0, context.DeadlineExceeded},
		} {
			began := time.Now()
			if err := Sleep(ctx, test.sleep); !errors.Is(err, test.err) || time.Since(began) != test.lasts {
				t.Errorf("Sleep(%s) returned %v after %s, want %v after %s", test.sleep, err, time.Since(began), test.err, test.lasts)
			}
		}
	})
}
