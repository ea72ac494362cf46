package healthport

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestListen waits for a port that is released a moment later, and gives up on a port
// that stays in use.
func TestListen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	if _, err := listen(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen on a port that is in use: got %v, want EADDRINUSE", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = taken.Close() })
	again, err := listen(address)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// TestAddresses wants loopback once among the addresses.
func TestAddresses(t *testing.T) {
	for bind, want := range map[string]string{
		"192.0.2.1":   "[192.0.2.1 127.0.0.1]",
		"2001:db8::1": "[2001:db8::1 127.0.0.1]",
		"127.0.0.1":   "[127.0.0.1]",
		"0.0.0.0":     "[0.0.0.0]",
		"::":          "[::]",
	} {
		if got := fmt.Sprint(Addresses(net.ParseIP(bind))); got != want {
			t.Errorf("%s: got %s, want %s", bind, got, want)
		}
	}
}
