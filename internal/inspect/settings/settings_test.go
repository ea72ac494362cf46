package settings

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// log is a Log that remembers.
type log struct{ levels chan config.Levels }

func (l log) Levels() config.Levels {
	levels := <-l.levels
	l.levels <- levels
	return levels
}

func (l log) SetLevels(levels config.Levels) {
	<-l.levels
	l.levels <- levels
}

func (l log) words() string { return strings.Join(l.Levels().Words(), ",") }

// start runs the settings of a file.
func start(t *testing.T, text string) (l log, socket, file string, hangups chan<- os.Signal) {
	t.Helper()
	dir := t.TempDir()
	socket, file = filepath.Join(dir, "s.sock"), filepath.Join(dir, "config.yaml")
	write(t, file, text)
	load := func() (*config.Config, config.Sources, error) { return config.LoadSources(file) }
	cfg, sources, err := load()
	if err != nil {
		t.Fatal(err)
	}
	l = log{make(chan config.Levels, 1)}
	l.levels <- cfg.Log.Levels()
	signals := make(chan os.Signal)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	own := New(config.ServerRole, load, cfg, sources, l, func(int) error { return nil })
	go func() { done <- own.Run(ctx, socket, signals) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the end: %v", err)
		}
	})
	for {
		if _, err := AskPrint(t.Context(), socket); !errors.Is(err, ErrNotRunning) {
			return l, socket, file, signals
		}
		time.Sleep(time.Millisecond)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	l, socket, file, hangups := start(t, "log-level: warn\nnode-name: pi\ntoken: SECRET\n")
	reload := func(text string) string {
		t.Helper()
		write(t, file, text)
		changes, err := AskReload(t.Context(), socket)
		if err != nil {
			return err.Error()
		}
		return strings.Join(changes, "; ")
	}
	if got := reload("log-level: warn\nnode-name: pi\ntoken: SECRET\n"); got != "" {
		t.Errorf("of what is as before: %s", got)
	}
	// Each time again, until there is a restart.
	for range 2 {
		if got := reload("log-level: warn\nnode-name: other\ntoken: SECRET2\n"); got != "token changed: needs a restart of kedge; node-name changed: needs a restart of kedge" {
			t.Errorf("got %s", got)
		}
	}
	if got := reload("log-level: info,dns=debug\nnode-name: pi\ntoken: SECRET\n"); got != "log-level is [info dns=debug] now" || l.words() != "info,dns=debug" {
		t.Errorf("got %s, and the levels are %s", got, l.words())
	}
	if got := reload("log-level: loud\n"); !strings.Contains(got, "as before") || !strings.Contains(got, "log-level") || l.words() != "info,dns=debug" {
		t.Errorf("of a fault: %s, and the levels are %s", got, l.words())
	}
	printed, err := AskPrint(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	shown := func(key string) config.Setting {
		i := slices.IndexFunc(printed.Settings, func(s config.Setting) bool { return s.Key == key })
		return printed.Settings[i]
	}
	if printed.Role != config.ServerRole || shown("node-name").Value != "pi" || shown("token").Value != config.Hidden || shown("log-level").Source != file+":1" {
		t.Errorf("printed %+v", printed)
	}

	write(t, file, "log-level: error\n")
	hangups <- os.Interrupt // whichever
	hangups <- os.Interrupt // the first has been dealt with
	if l.words() != "error" {
		t.Errorf("after a signal the levels are %s", l.words())
	}
}

func TestLevels(t *testing.T) {
	l, socket, _, _ := start(t, "debug: true\n")
	for _, test := range []struct{ words, want string }{{"", "debug"}, {"warn,dns=debug", "warn,dns=debug"}, {"", "warn,dns=debug"}} {
		var words []string
		if test.words != "" {
			words = strings.Split(test.words, ",")
		}
		got, err := AskLevels(t.Context(), socket, words)
		if err != nil || strings.Join(got, ",") != test.want || l.words() != test.want {
			t.Errorf("%q: %v, %v; the log has %s", test.words, got, err, l.words())
		}
	}
	if _, err := AskLevels(t.Context(), socket, []string{"loud"}); err == nil || !strings.Contains(err.Error(), "it can be error, warn, info, debug") {
		t.Errorf("got %v", err)
	}
	if changes, err := AskReload(t.Context(), socket); err != nil || len(changes) != 0 || l.words() != "debug" {
		t.Errorf("a reload: %v, %v, and the levels are %s", changes, err, l.words())
	}
}

func TestProfiles(t *testing.T) {
	_, socket, _, _ := start(t, "")
	text, err := AskProfile(t.Context(), socket, "goroutine")
	if err != nil || !bytes.Contains(text, []byte("settings.(*Settings).Run")) {
		t.Errorf("goroutines: %v, %s", err, text)
	}
	if heap, err := AskProfile(t.Context(), socket, "heap"); err != nil || len(heap) == 0 {
		t.Errorf("heap: %v, %d bytes", err, len(heap))
	}
	if _, err := AskProfile(t.Context(), socket, "secrets"); err == nil {
		t.Error("there is a profile secrets")
	}
	if _, err := AskProfile(t.Context(), socket+"x", "heap"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without kedge: %v", err)
	}
}
