package egress

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestServeLimits has more clients than a server takes.
func TestServeLimits(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served, release := make(chan net.Conn, 10), make(chan struct{})
	s := Serve(listener, 2, func(conn net.Conn) {
		defer conn.Close()
		served <- conn
		<-release
	})
	var clients []net.Conn
	for range 3 {
		client, err := net.Dial("tcp4", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
	}
	<-served
	<-served
	if len(served) != 0 {
		t.Error("a third connection is served")
	}
	release <- struct{}{}
	<-served // the third follows when one has ended
	s.Close()
	close(release)
	for _, client := range clients {
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a client got %v", err)
		}
	}
}

// TestServeCloses closes a server that has no place left.
func TestServeCloses(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served, release := make(chan struct{}), make(chan struct{})
	s := Serve(listener, 1, func(conn net.Conn) {
		defer conn.Close()
		close(served)
		<-release
	})
	client, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	<-served
	s.Close()
	close(release)
}

// TestNoForwarding has the setting of a machine on which Docker runs, and of one without.
func TestNoForwarding(t *testing.T) {
	for _, before := range []string{"1\n", "0\n"} {
		setting := filepath.Join(t.TempDir(), "ip_forward")
		if err := os.WriteFile(setting, []byte(before), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := noForwarding(setting); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(setting); err != nil || text[0] != '0' {
			t.Errorf("the setting was %q, and is %q, %v", before, text, err)
		}
	}
}
