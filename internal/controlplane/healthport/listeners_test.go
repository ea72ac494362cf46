package healthport

import (
	"errors"
	"net"
	"testing"
)

// TestListeners accepts from each listener, and closes all.
func TestListeners(t *testing.T) {
	l := newListeners()
	var addresses []string
	for range 2 {
		one, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.add(one)
		addresses = append(addresses, one.Addr().String())
	}
	if got := l.Addr().String(); got != addresses[0] {
		t.Errorf("the address is %s, want the first listener's, %s", got, addresses[0])
	}
	for _, address := range addresses {
		client, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if got := server.LocalAddr().String(); got != address {
			t.Errorf("accepted at %s, want %s", got, address)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if conn, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after the end: got %v, %v", conn, err)
	}
	for _, address := range addresses {
		again, err := net.Listen("tcp", address)
		if err != nil {
			t.Errorf("a port stayed in use: %v", err)
			continue
		}
		_ = again.Close()
	}
	if err := l.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}
