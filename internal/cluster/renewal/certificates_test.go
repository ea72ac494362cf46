package renewal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// TestRenewsInTime: when it is due, and after failures, less and less often.
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
					t.Error("it renewed all")
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
		k.run(ctx)
		want := []time.Duration{60 * time.Minute, 90 * time.Minute, 91 * time.Minute, 92 * time.Minute, 94 * time.Minute, 98 * time.Minute, 158 * time.Minute}
		if !slices.Equal(asked, want) {
			t.Errorf("looked after %v, want %v", asked, want)
		}
	})
}

// TestLook does not wait for the next time.
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
		k.run(ctx)
		if want := []time.Duration{10 * time.Minute, 70 * time.Minute}; !slices.Equal(asked, want) {
			t.Errorf("looked after %v, want %v", asked, want)
		}
	})
}

func TestAnswers(t *testing.T) {
	testutil.CheckLeaks(t)
	k := New(Config{
		Socket: filepath.Join(t.TempDir(), "socket"),
		Now:    time.Now,
		Due:    func() time.Time { return time.Time{} },
		Renew: func(_ context.Context, all bool) ([]string, error) {
			if !all {
				t.Error("it did not renew all")
			}
			return []string{"a.crt"}, errors.New("one is left")
		},
	})
	ask := func(path, body string) (a answer) {
		t.Helper()
		recorder := httptest.NewRecorder()
		k.answer(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		if err := json.NewDecoder(recorder.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask("/rotate", "{}"); !slices.Equal(a.Files, []string{"a.crt"}) || a.Error != "one is left" {
		t.Errorf("%+v", a)
	}
	const nodes = `{"kubelets": {"edge": "192.0.2.1:10250"}}`
	if a := ask("/lagging", nodes); !strings.Contains(a.Error, "does not know") {
		t.Errorf("an agent knows who lags behind: %+v", a)
	}
	k.cfg.Lagging = func(_ context.Context, kubelets map[string]string, _ []string) (Lag, error) {
		return Lag{Why: kubelets}, nil
	}
	if a := ask("/lagging", nodes); a.Lag.Why["edge"] != "192.0.2.1:10250" || a.Error != "" {
		t.Errorf("%+v", a)
	}
	if a := ask("/replace", "{}"); !strings.Contains(a.Error, "run this on a server") {
		t.Errorf("who has no others replaces their authorities: %+v", a)
	}
	k.cfg.Replace = func(_ context.Context, finish bool) error {
		if !finish {
			t.Error("it was asked to begin")
		}
		return nil
	}
	if a := ask("/replace", `{"finish": true}`); a.Error != "" {
		t.Errorf("%+v", a)
	}
	if a := ask("/else", "{}"); a.Error == "" || a.Files != nil {
		t.Errorf("another command: %+v", a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, cancel) }()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
