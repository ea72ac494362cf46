package settings

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/localapi/localtest"
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
func start(t *testing.T, text string) (l log, kedge *localapi.Client, file string, hangups chan<- os.Signal) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, text)
	load := func() (*config.Config, config.Sources, error) { return config.LoadSources(file) }
	cfg, sources, err := load()
	if err != nil {
		t.Fatal(err)
	}
	l = log{make(chan config.Levels, 1)}
	l.levels <- cfg.Log.Levels()
	signals := make(chan os.Signal)
	own := New(config.ServerRole, load, cfg, sources, l, func(int) error { return nil })
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { own.Run(ctx, signals) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return l, localtest.Serve(t, own.Routes()...), file, signals
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	l, kedge, file, hangups := start(t, "log-level: warn\nnode-name: pi\ntoken: SECRET\n")
	reload := func(text string) string {
		t.Helper()
		write(t, file, text)
		changes, err := AskReload(t.Context(), kedge)
		if err != nil {
			return err.Error()
		}
		return strings.Join(changes, "; ")
	}
	if got := reload("log-level: warn\nnode-name: pi\ntoken: SECRET\n"); got != "" {
		t.Errorf("reload of unchanged settings: got %q, want nothing", got)
	}
	// The message comes again at each reload, until there is a restart.
	for range 2 {
		if got := reload("log-level: warn\nnode-name: other\ntoken: SECRET2\n"); got != "token changed: needs a restart of kedge; node-name changed: needs a restart of kedge" {
			t.Errorf("got %s", got)
		}
	}
	if got := reload("log-level: info,dns=debug\nnode-name: pi\ntoken: SECRET\n"); got != "log-level is now [info dns=debug]" || l.words() != "info,dns=debug" {
		t.Errorf("got %s, and the levels are %s", got, l.words())
	}
	if got := reload("log-level: loud\n"); !strings.Contains(got, "stays as it was") || !strings.Contains(got, "log-level") || l.words() != "info,dns=debug" {
		t.Errorf("reload with a fault: got %s and levels %s, want the old levels", got, l.words())
	}
	printed, err := AskPrint(t.Context(), kedge)
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
	hangups <- os.Interrupt // the kind of signal does not matter
	hangups <- os.Interrupt // once this is sent, the first has been handled
	if l.words() != "error" {
		t.Errorf("after the signal: got levels %s, want error", l.words())
	}
}

func TestLevels(t *testing.T) {
	l, kedge, _, _ := start(t, "debug: true\n")
	for _, test := range []struct{ words, want string }{{"", "debug"}, {"warn,dns=debug", "warn,dns=debug"}, {"", "warn,dns=debug"}} {
		var words []string
		if test.words != "" {
			words = strings.Split(test.words, ",")
		}
		got, err := AskLevels(t.Context(), kedge, words)
		if err != nil || strings.Join(got, ",") != test.want || l.words() != test.want {
			t.Errorf("%q: %v, %v; the log has %s", test.words, got, err, l.words())
		}
	}
	if _, err := AskLevels(t.Context(), kedge, []string{"loud"}); err == nil || !strings.Contains(err.Error(), "use one of error, warn, info, debug") {
		t.Errorf("got %v", err)
	}
	if changes, err := AskReload(t.Context(), kedge); err != nil || len(changes) != 0 || l.words() != "debug" {
		t.Errorf("a reload: %v, %v, and the levels are %s", changes, err, l.words())
	}
}

func TestProfiles(t *testing.T) {
	_, kedge, _, _ := start(t, "")
	text, err := AskGoroutines(t.Context(), kedge)
	if err != nil || !bytes.Contains(text, []byte("settings.(*Settings).Run")) {
		t.Errorf("goroutines: %v, %s", err, text)
	}
	if heap, err := AskHeap(t.Context(), kedge); err != nil || len(heap) == 0 {
		t.Errorf("heap: %v, %d bytes", err, len(heap))
	}
}
