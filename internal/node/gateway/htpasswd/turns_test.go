package htpasswd

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlood has a thousand checks of somebody else in front of one that is honest, where each check
// takes a second. The honest one is not refused, and waits for two others at most: the one that runs,
// and one of the others in its line.
func TestFlood(t *testing.T) {
	honest := place{"shop", "Ingress/shop/web", "192.0.2.1"}
	for what, flood := range map[string]func(i int) place{
		"another namespace":                        func(int) place { return place{"evil", "Ingress/evil/web", "203.0.113.1"} },
		"another namespace with many lists":        func(i int) place { return place{"evil", fmt.Sprint("Ingress/evil/", i), "203.0.113.1"} },
		"another namespace with clients' networks": func(i int) place { return place{"evil", "Ingress/evil/web", fmt.Sprint(i)} },
		"another list":                             func(i int) place { return place{"shop", "Ingress/shop/other", fmt.Sprint(i)} },
		"another client":                           func(int) place { return place{"shop", "Ingress/shop/web", "203.0.113.1"} },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns := turns{free: 1}
				check := func(at place) error {
					if err := turns.take(t.Context(), at); err != nil {
						return err
					}
					defer turns.give()
					time.Sleep(time.Second)
					return nil
				}
				var working sync.WaitGroup
				busy := 0
				var mu sync.Mutex
				for i := range 1000 {
					working.Go(func() {
						if errors.Is(check(flood(i)), ErrBusy) {
							mu.Lock()
							defer mu.Unlock()
							busy++
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				if err := check(honest); err != nil {
					t.Errorf("the honest check gets %v", err)
				}
				if waited := time.Since(began) - time.Second; waited > 2*time.Second {
					t.Errorf("the honest check waits %s", waited)
				}
				working.Wait()
				if busy < 900 {
					t.Errorf("%d of the flood are refused", busy)
				}
				if turns.free != 1 || !turns.waiting.isEmpty() || len(turns.waiting.lines) > 0 {
					t.Errorf("at the end there are %d turns, and %v waits", turns.free, turns.waiting)
				}
			})
		})
	}
}

// TestLine takes checks out of a line in turns, also after some have gone.
func TestLine(t *testing.T) {
	var l line
	names := map[*check]string{}
	var checks []*check
	places := map[*check][]string{}
	for _, at := range []string{"a1x", "a1x", "a2x", "b1x", "b1y", "b1y", "c1x"} {
		c := &check{}
		names[c], places[c] = at, []string{at[:1], at[1:2], at[2:]}
		l.add(c, places[c])
		checks = append(checks, c)
	}
	gone := checks[6]
	if !l.remove(gone, places[gone]) || l.remove(gone, places[gone]) {
		t.Error("a check that waits is not removed once")
	}
	var order string
	for c := l.next(); c != nil; c = l.next() {
		order += names[c] + " "
		if l.remove(c, places[c]) {
			t.Errorf("%s waits still", names[c])
		}
	}
	if want := "a1x b1x a2x b1y a1x b1y "; order != want {
		t.Errorf("the order is %s, want %s", order, want)
	}
}
