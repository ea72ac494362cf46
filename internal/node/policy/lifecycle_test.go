package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/prometheus/client_golang/prometheus"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestAdmit starts pods before and after a server has told about them.
func TestAdmit(t *testing.T) {
	w := newWorld(t)
	p := w.policy
	open := func(to *party, want bool) {
		t.Helper()
		w.reaches(w.two, "tcp", to.at(80), want)
		w.reaches(w.two, "tcp", to.at6(80), want)
	}

	// Nobody knows anything.
	must(t, p.Admit(t.Context(), w.one.sandbox()))
	open(w.one, false)
	w.reaches(w.one, "tcp", w.two.at(80), false)
	w.reaches(w.one, "udp", w.node.at(80), false)
	w.reaches(w.node, "tcp", w.one.at(80), true)
	w.reaches(w.node, "tcp", w.one.at6(80), true)

	// The server tells about pod1, and that pod2 is isolated, which is another pod of that name.
	w.start(netpolicy.Update{
		Groups: map[string]*netpolicy.Group{"NOTHING": groupOf()},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("", ""), "ns/pod2": {UID: "another"}, "ns/pod3": w.three.pod("", "NOTHING")},
	})
	w.reaches(w.three, "tcp", w.one.at(80), false)
	w.reaches(w.outside, "tcp", w.one.at(80), true)
	open(w.one, false)
	w.reaches(w.node, "tcp", w.two.at6(80), true)
	w.change(netpolicy.Update{Pods: map[string]*netpolicy.Pod{"ns/pod2": w.two.pod("", "")}})
	open(w.one, true)
	open(w.four, false) // of which the server has not told
	w.change(netpolicy.Update{Pods: map[string]*netpolicy.Pod{"ns/pod4": w.four.pod("NOTHING", "")}})
	open(w.four, false)

	// Another pod gets the addresses of pod4.
	next := w.four.sandbox()
	next.ID, next.Name, next.UID = "next", "next", "next"
	must(t, p.Admit(t.Context(), next))
	open(w.four, false)
	w.change(netpolicy.Update{Pods: map[string]*netpolicy.Pod{"ns/next": {UID: "next"}}})
	open(w.four, true)
	p.Gone(t.Context(), w.four.sandbox().ID) // late
	open(w.four, true)

	// The pod waits for the server, and is isolated when Admit returns.
	p.Gone(t.Context(), "next")
	p.patience = longEnough
	again := w.four.sandbox()
	again.ID, again.Name, again.UID = "again", "again", "again"
	done := make(chan error)
	go func() { done <- p.Admit(t.Context(), again) }()
	for {
		p.mu.Lock()
		_, waiting := p.sandboxes["again"]
		p.mu.Unlock()
		if waiting {
			break
		}
		time.Sleep(time.Millisecond)
	}
	must(t, p.apply(t.Context(), netpolicy.Update{Active: true, Pods: map[string]*netpolicy.Pod{"ns/again": {UID: "again", Ingress: "NOTHING"}}}))
	must(t, <-done)
	open(w.four, false)
	w.reaches(w.four, "tcp", w.two.at(80), true)

	// A pod that stops waiting does not start.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	again.ID, again.UID = "cancelled", "cancelled"
	if err := p.Admit(ctx, again); !errors.Is(err, context.Canceled) {
		t.Errorf("Admit returned %v", err)
	}
	// Without policies, no pod waits.
	must(t, p.apply(t.Context(), netpolicy.Update{Active: false}))
	again.ID, again.UID = "free", "free"
	must(t, p.Admit(t.Context(), again))
	if rules := ruleset(t); rules != "" {
		t.Errorf("without policies there is\n%s", rules)
	}
}

// TestOlderServer has a server that knows no route for policies. A new pod has no connection, and its
// user is told once.
func TestOlderServer(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{}, 1)
	w.policy.cfg.Policies = nodestream.Policies().Keep(nodestream.Policies().From(&rest.Config{Host: "https://server", Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		asked <- struct{}{}
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
	})}))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { must(t, w.policy.Run(ctx, func() {})) })
	<-asked
	w.policy.Running(ctx, nil)
	must(t, w.policy.Admit(ctx, w.one.sandbox()))
	w.reaches(w.two, "tcp", w.one.at(80), false)
	w.reaches(w.one, "tcp", w.outside.at(80), false)
	w.reaches(w.node, "tcp", w.one.at(80), true)
	if len(w.warned) != 1 || !strings.HasPrefix(w.warned[0], "pod1 "+closedReason) || !strings.Contains(w.warned[0], "upgrade the servers") {
		t.Errorf("the Events are %q", w.warned)
	}
}

// TestExcess has a group that is too large for the node. Its pod has no connection, and pods of other
// groups have theirs. The pod has its connections when the group is smaller.
func TestExcess(t *testing.T) {
	w := newWorld(t)
	large := netpolicy.Rule{Sets: []string{"crowd"}}
	for port := range uint16(100) {
		large.Ports = append(large.Ports, tcp(80+2*port, 80+2*port))
	}
	crowd := addresses(w.two)
	for i := range maxElements / 100 {
		crowd.Add = append(crowd.Add, netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}))
	}
	w.start(netpolicy.Update{
		Sets: map[string]*netpolicy.Change{"crowd": crowd, "few": addresses(w.two)},
		Groups: map[string]*netpolicy.Group{
			"LARGE": groupOf(large),
			"SMALL": groupOf(netpolicy.Rule{Sets: []string{"few"}, Ports: []netpolicy.Ports{tcp(80, 80)}}),
		},
		Pods: map[string]*netpolicy.Pod{
			"ns/pod1": w.one.pod("LARGE", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("SMALL", ""), "ns/pod4": w.four.pod("", ""),
		},
	})
	w.reaches(w.two, "tcp", w.one.at(80), false)
	w.reaches(w.node, "tcp", w.one.at(80), true)
	w.reaches(w.two, "tcp", w.three.at(80), true)
	w.reaches(w.two, "tcp", w.three.at(81), false)
	w.change(netpolicy.Update{Sets: map[string]*netpolicy.Change{"crowd": {Remove: crowd.Add[len(crowd.Add)-2000:]}}})
	w.reaches(w.two, "tcp", w.one.at(80), true)
	w.reaches(w.two, "tcp", w.one.at(81), false)
	w.change(netpolicy.Update{Sets: map[string]*netpolicy.Change{"crowd": {Add: crowd.Add[len(crowd.Add)-2000:]}}})
	w.reaches(w.two, "tcp", w.one.at(80), false)
	w.reaches(w.two, "tcp", w.three.at(80), true)
	if len(w.warned) != 2 || !strings.HasPrefix(w.warned[1], "pod1 "+excessReason) {
		t.Errorf("the Events are %q", w.warned)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestRestart wants that rules of an earlier process stay until the next one knows as much.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	all := netpolicy.Update{
		Groups: map[string]*netpolicy.Group{"NOTHING": groupOf(), "SOME": groupOf(netpolicy.Rule{Anybody: true, Ports: []netpolicy.Ports{tcp(80, 80)}})},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("NOTHING", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("SOME", "")},
	}
	w.start(all)
	allowed := w.two.dial("tcp", w.three.at(80), longEnough)
	if !echoes(allowed, longEnough) {
		t.Fatal("no connection")
	}
	defer allowed.Close()
	check := func() {
		t.Helper()
		w.reaches(w.two, "tcp", w.one.at(80), false)
		w.reaches(w.two, "tcp", w.three.at(80), true)
		w.reaches(w.two, "tcp", w.three.at(81), false)
		if !echoes(allowed, longEnough) {
			t.Error("the connection is broken")
		}
	}
	check()

	w.policy = w.newPolicy()
	before := ruleset(t)
	all.Whole, all.Active = true, true
	must(t, w.policy.apply(t.Context(), all))
	if ruleset(t) != before {
		t.Error("the table changed before the pods are known")
	}
	// A new pod, before the pods of earlier are known.
	next := w.four.sandbox()
	must(t, w.policy.Admit(t.Context(), next))
	w.reaches(w.two, "tcp", w.four.at(80), false)
	check()
	w.policy.Running(t.Context(), []netpolicy.Sandbox{w.one.sandbox(), w.two.sandbox(), w.three.sandbox()})
	check()
	w.reaches(w.two, "tcp", w.four.at(80), false)
	w.change(netpolicy.Update{Pods: map[string]*netpolicy.Pod{"ns/pod4": w.four.pod("", "")}})
	w.reaches(w.two, "tcp", w.four.at(80), true)

	// The server comes back with the same and one group less.
	all.Pods["ns/pod3"], all.Pods["ns/pod4"] = w.three.pod("", ""), w.four.pod("", "")
	delete(all.Groups, "SOME")
	w.change(all)
	w.reaches(w.two, "tcp", w.three.at(81), true)
	w.reaches(w.two, "tcp", w.one.at(80), false)
	if strings.Contains(ruleset(t), "SOME") && len(w.policy.kernel.stale) == 0 {
		t.Error("the group stays")
	}

	// Disabled, the next start removes the table.
	ctx, cancel := context.WithCancel(t.Context())
	must(t, New(Config{Metrics: prometheus.NewRegistry()}).Run(ctx, cancel))
	if rules := ruleset(t); rules != "" {
		t.Errorf("disabled, there is\n%s", rules)
	}
}

// TestFollow has a change that cannot be written at once. It is written soon.
func TestFollow(t *testing.T) {
	testutil.CheckLeaks(t)
	w := newWorld(t)
	calls := make(chan func(netpolicy.Update) error)
	w.policy.cfg.Policies = func(ctx context.Context, apply func(netpolicy.Update) error) error {
		calls <- apply
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.policy.Run(ctx, func() {}) }()
	apply := <-calls
	if err := apply(netpolicy.Update{}); err == nil {
		t.Error("the first update may be a part")
	}
	must(t, apply(netpolicy.Update{
		Whole: true, Active: true, Groups: map[string]*netpolicy.Group{"NOTHING": groupOf()},
		Pods: map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("NOTHING", "")},
	}))
	gone, end := context.WithCancel(ctx)
	end()
	w.policy.Running(gone, []netpolicy.Sandbox{w.one.sandbox()})
	for written := false; !written; time.Sleep(time.Millisecond) {
		w.policy.mu.Lock()
		written = w.policy.kernel != nil
		w.policy.mu.Unlock()
	}
	w.reaches(w.two, "tcp", w.one.at(80), false)
	must(t, apply(netpolicy.Update{Active: true}))
	cancel()
	must(t, <-ended)
}

// TestChanges makes random changes, and wants after each that the kernel has what a new table would
// have.
func TestChanges(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(1, 2))
	parties := []*party{w.one, w.two, w.three, w.four}
	address := func() netip.Addr {
		if random.IntN(3) == 0 {
			return netip.MustParseAddr(fmt.Sprintf("fd00::%x", random.IntN(20)))
		}
		return netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(20))})
	}
	sets := []string{"a", "b", "c"}
	group := func() *netpolicy.Group {
		g := groupOf()
		for range 1 + random.IntN(3) {
			rule := netpolicy.Rule{Sets: []string{sets[random.IntN(3)], sets[random.IntN(3)]}}
			if random.IntN(2) == 0 {
				rule.Blocks = []netpolicy.Block{{CIDR: netip.PrefixFrom(address(), 24).Masked()}}
			}
			for range random.IntN(3) {
				first := uint16(80 + random.IntN(5))
				rule.Ports = append(rule.Ports, tcp(first, first+uint16(random.IntN(3))))
			}
			g.Rules = append(g.Rules, rule)
		}
		return g
	}
	// told is all that the server has told.
	told := netpolicy.Update{Whole: true, Sets: map[string]*netpolicy.Change{}, Groups: map[string]*netpolicy.Group{}, Pods: map[string]*netpolicy.Pod{}}
	note := func(update netpolicy.Update) {
		told.Active = update.Active
		for name, change := range update.Sets {
			now := &netpolicy.Change{}
			if told.Sets[name] != nil && change != nil {
				now.Add = slices.DeleteFunc(slices.Clone(told.Sets[name].Add), func(a netip.Addr) bool { return slices.Contains(change.Remove, a) })
			}
			if delete(told.Sets, name); change != nil {
				now.Add = append(now.Add, change.Add...)
				told.Sets[name] = now
			}
		}
		for name, g := range update.Groups {
			if told.Groups[name] = g; g == nil {
				delete(told.Groups, name)
			}
		}
		for name, pod := range update.Pods {
			if told.Pods[name] = pod; pod == nil {
				delete(told.Pods, name)
			}
		}
	}
	groups := map[string]bool{}
	pick := func() string {
		names := slices.Sorted(maps.Keys(groups))
		if len(names) == 0 || random.IntN(4) == 0 {
			return ""
		}
		return names[random.IntN(len(names))]
	}
	w.start(netpolicy.Update{})
	replaced := 0
	for i := range 60 {
		update := netpolicy.Update{Active: random.IntN(20) > 0, Sets: map[string]*netpolicy.Change{}, Groups: map[string]*netpolicy.Group{}, Pods: map[string]*netpolicy.Pod{}}
		for range random.IntN(3) {
			change := &netpolicy.Change{}
			for range random.IntN(6) {
				change.Add = append(change.Add, address())
			}
			for range random.IntN(6) {
				if a := address(); !slices.Contains(change.Add, a) {
					change.Remove = append(change.Remove, a)
				}
			}
			if random.IntN(8) == 0 {
				change = nil
			}
			update.Sets[sets[random.IntN(3)]] = change
		}
		if name := fmt.Sprintf("g%d", random.IntN(30)); !groups[name] {
			groups[name], update.Groups[name] = true, group()
		}
		if name := pick(); random.IntN(3) == 0 && name != "" && update.Groups[name] == nil {
			delete(groups, name)
			update.Groups[name] = nil
		}
		for range random.IntN(4) {
			p := parties[random.IntN(len(parties))]
			update.Pods["ns/"+p.name] = p.pod(pick(), pick())
			if random.IntN(8) == 0 {
				update.Pods["ns/"+p.name] = nil
			}
		}
		if random.IntN(10) == 0 {
			w.policy.Gone(t.Context(), w.four.sandbox().ID)
		} else if random.IntN(5) == 0 {
			must(t, w.policy.Admit(t.Context(), w.four.sandbox()))
		}
		kernel := w.policy.kernel
		note(update)
		if random.IntN(4) == 0 {
			update = told // the server came back
		}
		must(t, w.policy.apply(t.Context(), update))
		if len(w.policy.kernel.stale) == 0 && kernel != w.policy.kernel && len(kernel.placed) > 0 && len(w.policy.kernel.placed) > 0 {
			replaced++
		}
		if len(w.policy.kernel.stale) > 0 {
			continue // an old kernel
		}
		changed := canonical(t)
		w.policy.kernel = nil
		w.policy.mu.Lock()
		must(t, w.policy.enforceLocked(t.Context(), nil))
		w.policy.mu.Unlock()
		if whole := canonical(t); changed != whole {
			t.Fatalf("after change %d the table is\n%s\nwant\n%s\nafter %+v", i, changed, whole, update)
		}
	}
	if replaced > 0 {
		t.Errorf("%d changes were not possible without writing all anew", replaced)
	}
}

// canonical returns the table as text that does not depend on how it came to be.
func canonical(t *testing.T) string {
	t.Helper()
	output, err := exec.Command("nft", "-j", "list", "ruleset").Output()
	must(t, err)
	var list struct{ Nftables []map[string]map[string]any }
	must(t, json.Unmarshal(output, &list))
	var lines []string
	rules := map[string]int{}
	for _, object := range list.Nftables {
		for kind, fields := range object {
			delete(fields, "handle")
			delete(fields, "packets")
			delete(fields, "bytes")
			if elements, ok := fields["elem"].([]any); ok {
				var texts []string
				for _, element := range elements {
					text, err := json.Marshal(element)
					must(t, err)
					texts = append(texts, string(text))
				}
				slices.Sort(texts)
				fields["elem"] = texts
			}
			if kind == "rule" {
				chain := fmt.Sprint(fields["chain"])
				rules[chain]++
				fields["number"] = rules[chain]
			}
			text, err := json.Marshal(fields)
			must(t, err)
			lines = append(lines, kind+" "+string(text))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
