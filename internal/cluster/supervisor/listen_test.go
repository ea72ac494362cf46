package supervisor

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestListenSaysWhoHasThePort(t *testing.T) {
	testutil.CheckLeaks(t)
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("taken by %s (process %d)", strings.TrimSpace(string(comm)), os.Getpid())
	for name, addresses := range map[string]struct{ taken, wanted string }{
		"IPv4":               {"127.0.0.1", "127.0.0.1"},
		"IPv6":               {"::1", "::1"},
		"all, one is taken":  {"127.0.0.1", ""},
		"one, all are taken": {"", "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			taken, err := net.Listen("tcp", net.JoinHostPort(addresses.taken, "0"))
			if err != nil {
				t.Skip(err)
			}
			defer func() { _ = taken.Close() }()
			port := taken.Addr().(*net.TCPAddr).Port
			listener, err := Listen(addresses.wanted, port)
			if err == nil {
				_ = listener.Close()
				t.Fatal("one port was opened twice")
			}
			if got := err.Error(); !strings.Contains(got, want) || !strings.Contains(got, "--https-listen-port") {
				t.Errorf("got %q, want %q in it", got, want)
			}
		})
	}
}

func TestListenOnAnAddressOfOthers(t *testing.T) {
	_, err := Listen("192.0.2.1", 0)
	if err == nil || !strings.Contains(err.Error(), "--bind-address") {
		t.Errorf("got %v", err)
	}
}

func TestMuxRoutes(t *testing.T) {
	tests := map[string]struct {
		route        route
		method, path string
		want         bool
	}{
		"exact":          {route{"GET", "/ping", nil, nil}, "GET", "/ping", true},
		"other method":   {route{"GET", "/ping", nil, nil}, "POST", "/ping", false},
		"below exact":    {route{"", "/ping", nil, nil}, "GET", "/ping/x", false},
		"subtree":        {route{"", "/join/", nil, nil}, "POST", "/join/x", true},
		"beside subtree": {route{"", "/join/", nil, nil}, "POST", "/joined", false},
		"everything":     {route{"", "/", nil, nil}, "OPTIONS", "*", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.route.fits(test.method, test.path); got != test.want {
				t.Errorf("fits is %v", got)
			}
		})
	}
}
