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

// member is what decisions need to know of a member.
type member struct {
	id uint64
	// name is empty until the member has run for the first time.
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

// suffixBytes is the number of random bytes in a member's name. A node may come
// back as another member, which needs another name.
const suffixBytes = 4

// ensureName returns the name of the member in a folder: the node's name and a
// random suffix, which distinguishes it from earlier members. A member keeps its
// name.
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
	// rand.Read never fails: crypto/rand ends the process instead.
	_, _ = rand.Read(suffix)
	name := node + "-" + hex.EncodeToString(suffix)
	return name, datadir.WriteFile(file, []byte(name+"\n"), 0o600)
}

// nodeOf returns the node's name from a member's name.
func nodeOf(name string) string {
	if end := len(name) - 2*suffixBytes - 1; end > 0 && name[end] == '-' {
		return name[:end]
	}
	return name
}

// admit tells whether a server's member has to be added, or returns why it cannot
// be. It need not be added if that was done before and the answer did not arrive.
func admit(members []member, request join.MemberRequest) (add bool, err error) {
	var learner *member
	for i, one := range members {
		switch {
		case one.url == request.PeerURL && (one.name == "" || one.name == request.Name):
			return false, nil
		case one.name != "" && nodeOf(one.name) == nodeOf(request.Name), one.url == request.PeerURL:
			return false, fmt.Errorf("etcd already has a member of node %s at %s: choose another --node-name; "+
				"or, if that server's data are lost, delete its node first: `kubectl delete node %s`", nodeOf(one.name), one.url, nodeOf(one.name))
		case one.learner:
			learner = &members[i]
		}
	}
	if learner != nil {
		return false, join.NotNow(fmt.Sprintf("server %s is joining, and only one server can join at a time", *learner))
	}
	return true, nil
}

// initialCluster returns the list of members that a new member needs, in etcd's
// form.
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

// quorum returns how many of the given number of voters must agree.
func quorum(voters int) int { return voters/2 + 1 }

// silent returns the names of the voters that do not answer.
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

// canRemove returns nil if the cluster can continue without the member gone,
// because enough of the remaining voters are alive.
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
		return errors.New("it is the only member with a vote")
	}
	if living < quorum(left) {
		return fmt.Errorf("of the %d other members with a vote, %d answer and %d would be needed", left, living, quorum(left))
	}
	return nil
}
