package etcd

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// member is what has to be known of a member to decide about it.
type member struct {
	id uint64
	// name is empty until the member has been running for the first time.
	name    string
	url     string
	learner bool
}

// String names a member for a user.
func (m member) String() string {
	if m.name == "" {
		return m.url
	}
	return nodeOf(m.name)
}

// suffixBytes are the random bytes in a member's name: the same node may come
// back as another member.
const suffixBytes = 4

// ensureName returns the name of the member in a folder: the node's, and then
// what tells it from earlier ones. Once there is a member it keeps its name.
func ensureName(dir, node string) (string, error) {
	file := filepath.Join(dir, "name")
	text, err := os.ReadFile(file)
	if name := strings.TrimSpace(string(text)); err == nil && (nodeOf(name) == node || Exists(dir)) {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read name of etcd member: %w", err)
	}
	suffix := make([]byte, suffixBytes)
	// Never fails: crypto/rand ends the process rather.
	_, _ = rand.Read(suffix)
	name := node + "-" + hex.EncodeToString(suffix)
	return name, datadir.WriteFile(file, []byte(name+"\n"), 0o600)
}

// nodeOf returns the node of a member.
func nodeOf(name string) string {
	if end := len(name) - 2*suffixBytes - 1; end > 0 && name[end] == '-' {
		return name[:end]
	}
	return name
}

// admit tells whether a server's member is to be added, or why it cannot be. It
// need not be if that was done before and the answer did not arrive.
func admit(members []member, request join.MemberRequest) (add bool, err error) {
	var learner *member
	for i, one := range members {
		switch {
		case one.url == request.PeerURL && (one.name == "" || one.name == request.Name):
			return false, nil
		case one.name != "" && nodeOf(one.name) == nodeOf(request.Name), one.url == request.PeerURL:
			return false, fmt.Errorf("etcd has a member of node %s at %s already: choose another --node-name; "+
				"or, if that server's data are lost, delete its node first: kubectl delete node %s", nodeOf(one.name), one.url, nodeOf(one.name))
		case one.learner:
			learner = &members[i]
		}
	}
	if learner != nil {
		return false, join.NotNow(fmt.Sprintf("server %s is joining, and one joins after the other", *learner))
	}
	return true, nil
}

// initialCluster is what a new member has to be told of the others and itself.
func initialCluster(members []member, request join.MemberRequest) string {
	var parts []string
	for _, one := range members {
		name := one.name
		if one.url == request.PeerURL {
			name = request.Name
		}
		parts = append(parts, name+"="+one.url)
	}
	return strings.Join(parts, ",")
}

// voters counts the members with a vote.
func voters(members []member) int {
	n := 0
	for _, one := range members {
		if !one.learner {
			n++
		}
	}
	return n
}

// quorum is how many voters of so many must agree.
func quorum(voters int) int { return voters/2 + 1 }

// silent names the voters that do not answer.
func silent(members []member, alive map[uint64]bool) []string {
	var names []string
	for _, one := range members {
		if !one.learner && !alive[one.id] {
			names = append(names, one.String())
		}
	}
	slices.Sort(names)
	return names
}

// canRemove returns nil if the cluster can go on without a member: if enough of
// the voters that are left are alive.
func canRemove(members []member, alive map[uint64]bool, gone member) error {
	if gone.learner {
		return nil
	}
	left, living := 0, 0
	for _, one := range members {
		if one.learner || one.id == gone.id {
			continue
		}
		left++
		if alive[one.id] {
			living++
		}
	}
	if left == 0 {
		return errors.New("it is the only one")
	}
	if living < quorum(left) {
		return fmt.Errorf("of the %d others with a vote %d answer, and %d would be needed", left, living, quorum(left))
	}
	return nil
}
