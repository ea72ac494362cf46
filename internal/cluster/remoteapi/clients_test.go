package remoteapi

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// pipes is a Dialer of connections to nobody.
type pipes struct{}

func (pipes) DialContext(context.Context, string, string) (net.Conn, error) {
	near, _ := net.Pipe()
	return near, nil
}

// TestReconnect closes the connections of one user, and then of all.
func TestReconnect(t *testing.T) {
	clients := NewClients(pipes{}, func(string, ...string) *tls.Config { return &tls.Config{} })
	conns := map[string]net.Conn{}
	for _, user := range []string{"a", "b"} {
		clients.ClientConfig(user)
		conn, err := clients.dialers[user].DialContext(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		conns[user] = conn
	}
	want := func(user string, open bool) {
		t.Helper()
		if err := conns[user].SetDeadline(time.Time{}); (err == nil) != open {
			t.Errorf("the connection of %s is open: %t", user, err == nil)
		}
	}
	began := time.Now()
	clients.ReconnectUser("a", began)
	clients.ReconnectUser("nobody", began)
	want("a", false)
	conns["a"], _ = clients.dialers["a"].DialContext(t.Context(), "tcp", "")
	clients.ReconnectUser("a", began)
	want("a", true)
	clients.ReconnectUser("a", time.Now())
	want("a", false)
	want("b", true)
	clients.Reconnect()
	want("b", false)
}
