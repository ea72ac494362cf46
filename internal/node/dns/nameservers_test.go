package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coredns/coredns/plugin/forward"
	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// lines collects what several goroutines write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestSilentNameserver has a host whose nameserver does not answer at first.
func TestSilentNameserver(t *testing.T) {
	testWithoutNameserver(t, "nameserver 127.0.0.53\n", "no nameserver of this host answers (127.0.0.53:53)")
}

// TestNoNameserver has a host that has no nameserver at first.
func TestNoNameserver(t *testing.T) {
	testWithoutNameserver(t, "", "this host has no nameserver, so")
}

// testWithoutNameserver begins with a resolv.conf of a host that finds no names, and wants the fault to be told once, until
// the host has a nameserver that answers.
func testWithoutNameserver(t *testing.T, text, fault string) {
	if !inNetNS(t) {
		return
	}
	addAddress(t, "lo", "192.0.2.1/32")
	resolvConf := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(resolvConf, []byte(text), 0o644))
	api := newFakeAPI(t)
	defer api.stop()
	cluster(t, api)
	plugins, err := registered()
	must(t, err)
	var logged, faults lines
	stdlog.SetOutput(&logged)
	defer stdlog.SetOutput(os.Stderr)

	group := &component.Group{OnFault: func(s component.Status) { fmt.Fprintf(&faults, "%s;", s.Fault) }}
	group.Add(New(Config{
		Plugins: plugins, Client: api.config(), Objects: api.config(), Informers: api.informers(t), NodeName: "node1",
		NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ClusterDomain: "cluster.local",
		ResolvConf: resolvConf, Folder: t.TempDir(),
	}))
	ready := make(chan struct{})
	group.OnReady = func() { close(ready) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}

	failing := func() string { return ask(t, "udp", "example.com.", mdns.TypeA) }
	for range 5 {
		if got := failing(); got != "SERVFAIL" {
			t.Errorf("got %q", got)
		}
	}
	eventually(t, "a fault", func() string {
		if strings.Contains(faults.String(), fault) {
			return "a fault"
		}
		return faults.String()
	})
	failing()
	if told := faults.String(); strings.Count(told, ";") != 1 || !strings.Contains(told, "set --resolv-conf") {
		t.Errorf("told %q, want one fault and what to do", told)
	}
	if strings.Contains(logged.String(), "plugin/errors") {
		t.Errorf("logged:\n%s", logged.String())
	}

	upstream(t) // now one answers
	must(t, os.WriteFile(resolvConf, []byte("nameserver 127.0.0.53\n"), 0o644))
	eventually(t, ";", func() string { _, after, _ := strings.Cut(faults.String(), ";"); return after })
	if got := ask(t, "udp", "www.example.com.", mdns.TypeA); got != "203.0.113.9" {
		t.Errorf("got %q", got)
	}
	cancel()
	must(t, <-done)
}

// TestIsSilence has errors of the plugin forward, and others that stay errors of their queries.
func TestIsSilence(t *testing.T) {
	for err, want := range map[error]bool{
		errNone: true,
		fmt.Errorf("read udp: %w", os.ErrDeadlineExceeded): true,
		unix.ECONNREFUSED:    true,
		io.EOF:               true,
		forward.ErrNoHealthy: true,
		errors.New("concurrent queries exceeded"): false,
	} {
		if isSilence(err) != want {
			t.Errorf("%v: got %t", err, !want)
		}
	}
	if isSilence(nil) {
		t.Error("no error is one")
	}
}
