package published

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

func TestValue(t *testing.T) {
	var v Value[string]
	newest, changed := v.Get()
	if newest != "" {
		t.Errorf("before the first there is %q", newest)
	}
	_, too := v.Get()
	v.Set("a")
	<-changed
	<-too
	newest, changed = v.Get()
	select {
	case <-changed:
		t.Error("it has changed already")
	default:
	}
	if newest != "a" {
		t.Errorf("the newest is %q", newest)
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v Value[int]
		var got []int
		ended, result := make(chan struct{}), make(chan error, 1)
		watch := func(ctx context.Context, fault error) {
			go func() {
				result <- v.Watch(ctx, ended, func(now int) error {
					if got = append(got, now); now == 1 {
						v.Set(2)
						v.Set(3)
					}
					return fault
				})
			}()
		}
		ctx, cancel := context.WithCancel(t.Context())
		watch(ctx, nil)
		synctest.Wait()
		v.Set(1)
		synctest.Wait()
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
		if want := []int{0, 1, 3}; !slices.Equal(got, want) {
			t.Errorf("it got %v, want %v", got, want)
		}
		fault := errors.New("fault")
		watch(t.Context(), fault)
		if err := <-result; !errors.Is(err, fault) {
			t.Errorf("it fails with %v", err)
		}
		watch(t.Context(), nil)
		synctest.Wait()
		close(ended)
		if err := <-result; !errors.Is(err, ErrEnded) || !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}
