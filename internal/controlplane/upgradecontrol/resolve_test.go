package upgradecontrol

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// newResolver makes a resolver without other servers. Its answers are sent to the channel.
func newResolver(t *testing.T) (*resolver, chan struct{}) {
	t.Helper()
	answered := make(chan struct{}, 1)
	return &resolver{
		store:    store.New(store.Config{Folder: t.TempDir(), Servers: func() []string { return nil }}),
		keyFile:  filepath.Join(t.TempDir(), "release.pem"),
		answered: func() { answered <- struct{}{} }, tasks: map[string]*task{},
	}, answered
}

// TestAsk asks while the answer is being looked for, and when nobody is interested any more.
func TestAsk(t *testing.T) {
	testutil.CheckLeaks(t)
	var asked atomic.Int32
	hold := make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		_, _ = fmt.Fprintln(w, target)
	}))
	defer source.Close()
	// http is allowed only with a key.
	r, answered := newResolver(t)
	key := "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBKCixy/gzxXSpQw2Roya2hWPEbLq\n0GTh+SGxb76bIRTseNOjrWCnnpG1K4p1K4CYxOktwsDa/rq8wOqdgyfggw==\n-----END PUBLIC KEY-----\n"
	if err := os.WriteFile(r.keyFile, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	q := question{plan: &upgrades.Plan{Spec: upgrades.PlanSpec{Channel: source.URL}}}
	for range 3 {
		if got := r.ask(t.Context(), q); got.done {
			t.Errorf("got %v", got)
		}
		r.forget()
	}
	close(hold)
	<-answered
	if got := r.ask(t.Context(), q); !got.done || got.version != target || got.err != nil || asked.Load() != 1 {
		t.Errorf("after %d requests: %v", asked.Load(), got)
	}
	hold = make(chan struct{})
	q.plan = &upgrades.Plan{Spec: q.plan.Spec}
	q.plan.Generation = 2
	r.ask(t.Context(), q)
	r.forget()
	r.forget() // nobody has asked: the request ends
	<-answered
	r.running.Wait()
	if len(r.tasks) != 0 {
		t.Errorf("left are %v", r.tasks)
	}
}

func TestFind(t *testing.T) {
	r, _ := newResolver(t)
	for name, test := range map[string]struct {
		spec    upgrades.PlanSpec
		version string
		want    string
	}{
		"a version":           {upgrades.PlanSpec{Version: target}, "", ""},
		"http":                {upgrades.PlanSpec{Version: target, Source: "http://192.0.2.1"}, target, "anybody on the way"},
		"a channel over http": {upgrades.PlanSpec{Channel: "http://192.0.2.1"}, "", "anybody on the way"},
	} {
		got := r.find(t.Context(), question{&upgrades.Plan{Spec: test.spec}, test.version, []string{"amd64"}})
		if test.want == "" && (got.err != nil || got.version != target) || test.want != "" && (got.err == nil || !strings.Contains(got.err.Error(), test.want)) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if err := os.WriteFile(r.keyFile, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.find(t.Context(), question{plan: &upgrades.Plan{Spec: upgrades.PlanSpec{Channel: "https://192.0.2.1"}}}); got.err == nil || !strings.Contains(got.err.Error(), "PEM") {
		t.Errorf("a key that is none: %v", got.err)
	}
}

// TestFileOfPlan has files that are no kedge for this server.
func TestFileOfPlan(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	foreign := []byte(string(self))
	if foreign[18] = 62; runtime.GOARCH == "amd64" {
		foreign[18] = 183
	}
	for content, want := range map[string]string{
		"#!/bin/sh":     "not an executable of Linux",
		string(foreign): "so that it cannot ask it for its version",
		string(self):    "it does not run here",
	} {
		r, _ := newResolver(t)
		path := filepath.Join(t.TempDir(), "kedge")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got := r.find(t.Context(), question{plan: &upgrades.Plan{Spec: upgrades.PlanSpec{File: path, SHA256: digestOf(content)}}})
		if got.err == nil || !strings.Contains(got.err.Error(), want) {
			t.Errorf("got %v, want %q", got.err, want)
		}
	}
}

// TestBares has servers of which some are no nodes.
func TestBares(t *testing.T) {
	testutil.CheckLeaks(t)
	version, status := `{"gitVersion":"v1.37.2+kedge.1"}`, http.StatusOK
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, version)
	}))
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	address := server.Listener.Addr().String()
	nodes := []*node{{name: "s", addresses: []string{"192.0.2.1"}}, {name: "a", role: agent, addresses: []string{"192.0.2.2"}}}
	ask := func(addresses ...string) string { return fmt.Sprint(baresOf(t.Context(), client, addresses, nodes)) }
	for got, want := range map[string]string{
		ask("192.0.2.1:6443"):                         "[]",
		ask("203.0.113.1:6443"):                       "[]", // advertised with another address
		ask("192.0.2.1:6443", address):                "[{" + address + " v1.37.2+kedge.1}]",
		ask("192.0.2.1:6443", "127.0.0.1:1"):          "[{127.0.0.1:1 }]",
		ask("127.0.0.1:1", address, "192.0.2.1:6443"): "[{127.0.0.1:1 } {" + address + " v1.37.2+kedge.1}]",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	status = http.StatusForbidden
	if got := ask("192.0.2.1:6443", address); got != "[{"+address+" }]" {
		t.Errorf("got %s", got)
	}
	if status, version = http.StatusOK, "<html>"; ask("192.0.2.1:6443", address) != "[{"+address+" }]" {
		t.Error("nonsense is a version")
	}
}
