package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

var (
	one   = member{id: 1, name: "one-00000001", url: "https://192.0.2.1:2380"}
	two   = member{id: 2, name: "two-00000002", url: "https://192.0.2.2:2380"}
	three = member{id: 3, name: "three-00000003", url: "https://192.0.2.3:2380"}
	four  = member{id: 4, name: "four-00000004", url: "https://192.0.2.4:2380"}
)

func learner(m member) member {
	m.learner = true
	return m
}

func unstarted(m member) member {
	m.name = ""
	return m
}

func TestAdmit(t *testing.T) {
	request := join.MemberRequest{Name: three.name, PeerURL: three.url}
	for name, test := range map[string]struct {
		members []member
		add     bool
		want    string
		notNow  bool
	}{
		"new":                         {members: []member{one, two}, add: true},
		"asked before":                {members: []member{one, two, learner(unstarted(three))}},
		"asked before, and started":   {members: []member{one, two, learner(three)}},
		"the same, a voter":           {members: []member{one, two, three}},
		"another learner":             {members: []member{one, learner(two)}, want: "server two is joining", notNow: true},
		"another, yet to start":       {members: []member{one, learner(unstarted(two))}, want: two.url + " is joining", notNow: true},
		"the name is taken":           {members: []member{one, {id: 9, name: "three-00000009", url: two.url}}, want: "kubectl delete node three"},
		"the name, and a learner":     {members: []member{learner(two), {id: 9, name: "three-00000009", url: four.url}}, want: "kubectl delete node three"},
		"the address is another node": {members: []member{one, {id: 9, name: "nine-00000009", url: three.url}}, want: "kubectl delete node nine"},
	} {
		add, err := admit(test.members, request)
		if add != test.add || (err == nil) != (test.want == "") || errors.Is(err, join.ErrNotNow) != test.notNow ||
			err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %t, %v", name, add, err)
		}
	}
}

func TestInitialCluster(t *testing.T) {
	got := initialCluster([]member{one, learner(unstarted(two))}, join.MemberRequest{Name: two.name, PeerURL: two.url})
	if want := "one-00000001=https://192.0.2.1:2380,two-00000002=https://192.0.2.2:2380"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestCanRemove(t *testing.T) {
	for name, test := range map[string]struct {
		members []member
		alive   []member
		gone    member
		want    bool
	}{
		"dead, of three":              {[]member{one, two, three}, []member{one, two}, three, true},
		"alive, of three":             {[]member{one, two, three}, []member{one, two, three}, three, true},
		"alive, of three, one dead":   {[]member{one, two, three}, []member{one, two}, two, false},
		"alive, of two":               {[]member{one, two}, []member{one, two}, two, true},
		"dead, of four, another dead": {[]member{one, two, three, four}, []member{one, two}, four, true},
		"alive, of four, two dead":    {[]member{one, two, three, four}, []member{one, two}, two, false},
		"the only member with a vote": {[]member{one}, []member{one}, one, false},
		"the only voter":              {[]member{one, learner(two)}, []member{one, two}, one, false},
		"a learner":                   {[]member{one, two, learner(three)}, nil, learner(three), true},
	} {
		if err := canRemove(test.members, answering(test.alive...), test.gone); (err == nil) != test.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func answering(members ...member) map[uint64]bool {
	alive := map[uint64]bool{}
	for _, m := range members {
		alive[m.id] = true
	}
	return alive
}

// TestLost wants users to be told to reset a cluster only while too few of its members answer.
func TestLost(t *testing.T) {
	const reset = "--cluster-reset"
	for name, test := range map[string]struct {
		alive []member
		want  string
		reset bool
	}{
		"one of three":   {[]member{one}, "of 3 members with a vote, 1 answer and 2 are needed. No answer from three, two. ", true},
		"two of three":   {[]member{one, two}, "to elect a leader: of 3 members with a vote, 2 answer and 2 are needed. ", false},
		"three of three": {[]member{one, two, three}, "to elect a leader: of 3 members with a vote, 3 answer and 2 are needed. ", false},
	} {
		got := lost([]member{one, two, three, learner(four)}, answering(test.alive...))
		if !strings.Contains(got, test.want) || strings.Contains(got, reset) != test.reset {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	name, err := ensureName(dir, "rack-2.example.org")
	if err != nil || nodeOf(name) != "rack-2.example.org" || name == nodeOf(name) {
		t.Fatalf("got %q, %v", name, err)
	}
	if again, err := ensureName(dir, "rack-2.example.org"); err != nil || again != name {
		t.Errorf("then got %q, %v", again, err)
	}
	if name, err = ensureName(dir, "renamed"); err != nil || nodeOf(name) != "renamed" {
		t.Errorf("renamed before there was a member: %q, %v", name, err)
	}
	wal := filepath.Join(dir, "member", "wal")
	if err := os.MkdirAll(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wal, "0.wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := ensureName(dir, "rack-2.example.org"); err != nil || again != name {
		t.Errorf("renamed after there was a member: %q, %v", again, err)
	}
	if other, err := ensureName(t.TempDir(), "rack-2.example.org"); err != nil || other == name {
		t.Errorf("got name %q, %v for another member, want another name", other, err)
	}
	for _, short := range []string{"", "etcd", "-12345678"} {
		if got := nodeOf(short); got != short {
			t.Errorf("got node %q of the member %q, want the same name", got, short)
		}
	}
}

func TestWorthwhile(t *testing.T) {
	for _, test := range []struct {
		size, used int64
		want       bool
	}{{60 << 20, 1 << 20, false}, {200 << 20, 150 << 20, false}, {200 << 20, 50 << 20, true}} {
		if got := worthwhile(test.size, test.used); got != test.want {
			t.Errorf("%d of %d MB used: got %t", test.used>>20, test.size>>20, got)
		}
	}
}
