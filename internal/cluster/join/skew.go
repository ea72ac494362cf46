package join

import (
	"fmt"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// maxOlder is how many minor versions a node may be behind its server:
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const maxOlder = 3

// checkSkew fails if Kubernetes does not support the node's version with the server's.
// It tells whether the node is at least one minor version older.
func checkSkew(node, server string) (older bool, err error) {
	n, err := utilversion.ParseSemantic(node)
	if err != nil {
		return false, fmt.Errorf("read version: %w", err)
	}
	s, err := utilversion.ParseSemantic(server)
	if err != nil {
		return false, fmt.Errorf("read the server's version: %w", err)
	}
	behind := int(s.Minor()) - int(n.Minor())
	switch {
	case n.Major() != s.Major(), behind < 0:
		return false, fmt.Errorf("this node's kedge %s is newer than the server's %s, and a node must not be newer: upgrade the servers first", node, server)
	case behind > maxOlder:
		return false, fmt.Errorf("this node's kedge %s is too old for the server's %s, because a node may be at most %d minor versions behind: upgrade this node", node, server, maxOlder)
	}
	return behind > 0, nil
}

// clockTolerance is how far the clocks of servers may differ. If a server's clock is
// further behind, the tokens of service accounts that another server has just signed are
// not valid yet for it (go-jose's jwt.DefaultLeeway).
const clockTolerance = time.Minute

// checkClock fails if a server's clock is further ahead of this machine's, or behind it,
// than clockTolerance.
func checkClock(ahead time.Duration, server string) error {
	if ahead.Abs() <= clockTolerance {
		return nil
	}
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	now := time.Now().UTC()
	return fmt.Errorf("the clock of the server at %s is %s %s this machine's, which says %s: servers whose clocks differ by more than %s refuse each other's tokens. "+
		"Set the wrong one, or give both machines a time server", server, ahead.Abs().Round(time.Second), direction, now.Format(time.RFC3339), clockTolerance)
}
