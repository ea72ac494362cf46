package renewal

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/localapi/localtest"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// TestRenewsInTime renews certificates when they are due, and after failures less and
// less often.
func TestRenewsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		due := began.Add(90 * time.Minute)
		var asked []time.Duration
		k := New(Config{
			Now: time.Now,
			Due: func() time.Time { return due },
			Renew: func(_ context.Context, all bool) ([]string, error) {
				if all {
					t.Error("got all certificates renewed, want only those that are due")
				}
				asked = append(asked, time.Since(began))
				switch since := time.Since(due); {
				case since < 0:
					return nil, nil
				case since < 7*time.Minute:
					return nil, errors.New("the disk is full")
				}
				due = time.Time{}
				return []string{"x"}, nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		if err := k.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
		want := []time.Duration{60 * time.Minute, 90 * time.Minute, 91 * time.Minute, 93 * time.Minute, 97 * time.Minute, 157 * time.Minute}
		if !slices.Equal(asked, want) {
			t.Errorf("looked after %v, want %v", asked, want)
		}
	})
}

// TestLookFails renews after a minute if a renewal has failed that somebody asked for, although nothing is due.
func TestLookFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var asked []time.Duration
		k := New(Config{
			Now: time.Now,
			Due: func() time.Time { return began.Add(365 * 24 * time.Hour) },
			Renew: func(context.Context, bool) ([]string, error) {
				if asked = append(asked, time.Since(began)); len(asked) < 3 {
					return nil, errors.New("the server has closed the connection")
				}
				return []string{"x"}, nil
			},
		})
		time.AfterFunc(10*time.Minute, k.Look)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		if err := k.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
		if want := []time.Duration{10 * time.Minute, 11 * time.Minute, 13 * time.Minute}; !slices.Equal(asked, want) {
			t.Errorf("looked after %v, want %v", asked, want)
		}
	})
}

// TestLook renews at once, without waiting for the next look.
func TestLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var asked []time.Duration
		k := New(Config{
			Now: time.Now,
			Due: func() time.Time { return time.Time{} },
			Renew: func(context.Context, bool) ([]string, error) {
				asked = append(asked, time.Since(began))
				return nil, nil
			},
		})
		time.AfterFunc(10*time.Minute, k.Look)
		ctx, cancel := context.WithTimeout(t.Context(), 80*time.Minute)
		defer cancel()
		if err := k.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
		if want := []time.Duration{10 * time.Minute, 70 * time.Minute}; !slices.Equal(asked, want) {
			t.Errorf("looked after %v, want %v", asked, want)
		}
	})
}

func TestAnswers(t *testing.T) {
	testutil.CheckLeaks(t)
	cfg := Config{
		Now: time.Now,
		Due: func() time.Time { return time.Time{} },
		Renew: func(_ context.Context, all bool) ([]string, error) {
			if !all {
				t.Error("got only due certificates renewed, want all")
			}
			return []string{"a.crt"}, errors.New("one is left")
		},
	}
	agent := localtest.Serve(t, New(cfg).Routes()...)
	if files, err := Rotate(t.Context(), agent); !slices.Equal(files, []string{"a.crt"}) || err == nil || err.Error() != "one is left" {
		t.Errorf("got renewed %q, %v, want a.crt and the error \"one is left\"", files, err)
	}
	nodes := map[string]string{"edge": "192.0.2.1:10250"}
	if _, err := Lagging(t.Context(), agent, nodes, nil); !errors.Is(err, localapi.ErrNotReady) || !strings.Contains(err.Error(), "only a kedge server") {
		t.Errorf("Lagging on an agent: got error %v, want that only a server knows", err)
	}
	if err := Replace(t.Context(), agent, false); !errors.Is(err, localapi.ErrNotReady) || !strings.Contains(err.Error(), "with others") {
		t.Errorf("Replace without other servers: got error %v, want it refused", err)
	}

	cfg.Lagging = func(_ context.Context, kubelets map[string]string, _ []string) (Lag, error) {
		return Lag{Why: kubelets}, nil
	}
	cfg.Replace = func(_ context.Context, finish bool) error {
		if !finish {
			t.Error("got a request to begin, want one to finish")
		}
		return nil
	}
	server := localtest.Serve(t, New(cfg).Routes()...)
	if lag, err := Lagging(t.Context(), server, nodes, nil); err != nil || lag.Why["edge"] != "192.0.2.1:10250" {
		t.Errorf("got %+v, %v, want the address of edge as the reason", lag, err)
	}
	if err := Replace(t.Context(), server, true); err != nil {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	if err := New(cfg).Run(ctx, cancel); err != nil {
		t.Error(err)
	}
}
