package choice

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
)

func TestUntilReached(t *testing.T) {
	failures := 1
	dial := untilReached(func(context.Context, string, string) (net.Conn, error) {
		if failures--; failures >= 0 {
			return nil, errors.New("refused")
		}
		return &net.TCPConn{}, nil
	})
	if conn, err := dial(t.Context(), "tcp", "x"); conn == nil || err != nil {
		t.Errorf("got %v, %v", conn, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failures = 1
	if _, err := dial(ctx, "tcp", "x"); err == nil || err.Error() != "refused" {
		t.Errorf("got %v", err)
	}
}

// A server without etcd tells where etcd is, and admits no member.
func TestEtcdElsewhere(t *testing.T) {
	e := etcdElsewhere{serverlb.New(serverlb.Config{Server: "192.0.2.1:6443", NodeName: "a", File: t.TempDir() + "/servers"})}
	if addresses, usable := e.Members(); usable || !slices.Equal(addresses, []string{"192.0.2.1:6443"}) {
		t.Errorf("got %v, %t", addresses, usable)
	}
	if _, err := e.Admit(t.Context(), join.MemberRequest{}); err == nil || errors.Is(err, join.ErrNotNow) || !strings.Contains(err.Error(), "192.0.2.1:6443") {
		t.Errorf("got %v", err)
	}
}
