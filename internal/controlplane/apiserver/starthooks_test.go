package apiserver

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// TestLengthened has start hooks that fail after a minute, as upstream's do on a slow machine. A
// hook's error ends the process.
func TestLengthened(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	for name, test := range map[string]struct {
		again           bool
		failures, calls int
		stop            time.Duration
	}{
		"fast":                           {again: true, calls: 1},
		"slow, and called again":         {again: true, failures: 7, calls: 8},
		"slow, and goes on by itself":    {failures: 7, calls: 1},
		"stopped during a call":          {again: true, failures: 7, calls: 2, stop: 90 * time.Second},
		"stopped between two calls":      {again: true, failures: 7, calls: 1, stop: time.Minute + hookRetry/2},
		"stopped, and goes on by itself": {failures: 7, calls: 1, stop: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if test.stop > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.stop)
					defer cancel()
				}
				calls := 0
				hook := lengthened("a hook", func(ctx genericapiserver.PostStartHookContext) error {
					if calls++; calls > test.failures {
						return nil
					}
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(time.Minute):
						return errors.New("timeout")
					}
				}, test.again, logrus.NewEntry(log))
				if err := hook(genericapiserver.PostStartHookContext{Context: ctx}); err != nil {
					t.Errorf("got %v, which ends the process", err)
				}
				if calls != test.calls {
					t.Errorf("the hook was called %d times, want %d", calls, test.calls)
				}
			})
		})
	}
}
