package hosts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

// claims makes a claim of each text: NAMESPACE HOST [allow=NAMESPACES]. Each is younger than the one
// before. Of a host, "-" stands for all hosts.
func claims(texts ...string) (all []Claim) {
	for i, text := range texts {
		fields := strings.Fields(text)
		object := &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: fields[0], Name: fmt.Sprint("i", i)}}
		if len(fields) > 2 {
			object.Annotations = map[string]string{gateways.AllowAnnotation: strings.TrimPrefix(fields[2], "allow=")}
		}
		all = append(all, Claim{
			Host: strings.Replace(fields[1], "-", "", 1), Namespace: fields[0], Kind: "Ingress", Object: object, Since: time.Unix(int64(i), 0),
		})
	}
	return all
}

// assigned makes the claim of an administrator.
func assigned(namespace, list string) []Claim {
	claims, _ := Assigned([]Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Annotations: map[string]string{gateways.HostsAnnotation: list}, CreationTimestamp: metav1.Unix(9999, 0),
	}}})
	return claims
}

// TestAssigned has an administrator who writes what are no names of hosts.
func TestAssigned(t *testing.T) {
	list := "a.test, *.B.test,*, c.test., https://d.test, e.test:80"
	claims, wrong := Assigned([]Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{gateways.HostsAnnotation: list}}}})
	names := func(claims []Claim) (all string) {
		for _, claim := range claims {
			all += claim.Host + " "
		}
		return all
	}
	if got, bad := names(claims), names(wrong); got != "a.test *.b.test " || bad != "* c.test. https://d.test e.test:80 " {
		t.Errorf("the hosts are %q, and wrong are %q", got, bad)
	}
}

func TestDecide(t *testing.T) {
	for name, test := range map[string]struct {
		claims []Claim
		record Record
		// may has NAMESPACE HOST for what is allowed, and mayNot for what is not.
		may, mayNot []string
		conflicts   int
	}{
		"the older one": {claims: claims("a x.test", "b x.test"), may: []string{"a x.test"}, mayNot: []string{"b x.test"}, conflicts: 1},
		"one namespace": {claims: claims("a x.test", "a x.test"), may: []string{"a x.test"}},
		"of the same second, the name": {
			claims: []Claim{claims("b x.test")[0], claims("a x.test")[0]}, may: []string{"a x.test"}, mayNot: []string{"b x.test"}, conflicts: 1,
		},
		"an older wildcard covers":      {claims: claims("a *.x.test", "b y.x.test", "b *.y.x.test"), mayNot: []string{"b y.x.test", "b z.y.x.test"}, conflicts: 2},
		"an older exact name stays":     {claims: claims("b y.x.test", "a *.x.test"), may: []string{"b y.x.test", "a z.x.test"}, mayNot: []string{"a y.x.test"}},
		"an older narrow wildcard":      {claims: claims("b *.y.x.test", "a *.x.test", "b z.y.x.test"), may: []string{"b z.y.x.test"}, mayNot: []string{"a q.y.x.test"}},
		"all hosts cover nothing":       {claims: claims("a -", "b x.test"), may: []string{"a -", "b x.test"}, mayNot: []string{"b -"}},
		"a top-level wildcard as well":  {claims: claims("a *.test", "b x.test"), may: []string{"a *.test", "b x.test"}, mayNot: []string{"b *.test"}},
		"a wildcard of a registry":      {claims: claims("a *.co.uk", "b x.co.uk", "a *.duckdns.org", "b x.duckdns.org"), may: []string{"a *.co.uk", "b x.co.uk", "b x.duckdns.org"}, mayNot: []string{"b *.co.uk"}},
		"two for all hosts":             {claims: claims("a -", "b -"), may: []string{"a -"}, mayNot: []string{"b -"}, conflicts: 1},
		"the owner allows":              {claims: claims("a x.test allow=c,b", "b x.test", "d x.test"), may: []string{"b x.test", "c x.test"}, mayNot: []string{"d x.test"}, conflicts: 1},
		"another object of the owner":   {claims: claims("a x.test", "b x.test", "a x.test allow=b"), may: []string{"b x.test"}},
		"the owner allows below":        {claims: claims("a *.x.test allow=b", "b y.x.test"), may: []string{"b y.x.test"}, mayNot: []string{"a y.x.test"}},
		"the owner allows below, later": {claims: claims("a *.x.test", "b y.x.test", "a y.x.test allow=b"), may: []string{"a y.x.test", "b y.x.test"}},
		"who is not the owner allows":   {claims: claims("a x.test", "b x.test allow=c", "c x.test"), mayNot: []string{"b x.test", "c x.test"}, conflicts: 2},
		"an administrator":              {claims: append(claims("a x.test"), assigned("b", " x.test, *.y.test")...), may: []string{"b x.test", "b z.y.test"}, mayNot: []string{"a x.test", "a z.y.test"}, conflicts: 1},
		"an administrator, below":       {claims: slices.Concat(assigned("a", "*.x.test"), assigned("b", "y.x.test")), may: []string{"a z.x.test", "b y.x.test"}, mayNot: []string{"a y.x.test"}},
		"who had it before":             {claims: claims("b x.test", "a x.test"), record: Record{"x.test": {"a", 7}}, may: []string{"a x.test"}, mayNot: []string{"b x.test"}, conflicts: 1},
		"who had it, and wants it not":  {claims: claims("b x.test"), record: Record{"x.test": {"a", 7}}, may: []string{"b x.test"}},
		"a wildcard that is new":        {claims: claims("a *.x.test", "b y.x.test"), record: Record{"y.x.test": {"b", 7}}, may: []string{"b y.x.test"}, mayNot: []string{"a y.x.test"}},
		"a permission that has ended":   {claims: claims("a *.x.test", "b y.x.test"), record: Record{"y.x.test": {"b", 7}, "*.x.test": {"a", 6}}, mayNot: []string{"b y.x.test"}, conflicts: 1},
		"an administrator, of a record": {claims: append(claims("a x.test"), assigned("b", "x.test")...), record: Record{"x.test": {"a", 1}}, may: []string{"b x.test"}, mayNot: []string{"a x.test"}, conflicts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			owners := Decide(test.claims, test.record)
			for _, text := range slices.Concat(test.may, test.mayNot) {
				namespace, host, _ := strings.Cut(text, " ")
				if got := owners.Admits(namespace, strings.Replace(host, "-", "", 1)); got != slices.Contains(test.may, text) {
					t.Errorf("%s: %t", text, got)
				}
			}
			if got := owners.Conflicts(); len(got) != test.conflicts {
				t.Errorf("there are %d conflicts, want %d", len(got), test.conflicts)
			}
		})
	}
	var nobody *Owners
	if !nobody.Admits("a", "x.test") || len(nobody.Names()) > 0 || len(nobody.Conflicts()) > 0 || len(nobody.Record(nil)) > 0 {
		t.Error("hosts that belong to nobody have an owner")
	}
}

// TestMessages wants what happened, why, and what to do.
func TestMessages(t *testing.T) {
	owners := Decide(claims("a *.x.test", "b y.x.test"), nil)
	conflict := owners.Conflicts()[0]
	for _, want := range []string{
		"y.x.test is not served", "*.x.test", "namespace a", "Ingress i0",
		"kubectl annotate --namespace a ingress i0 gateway.kedge.dev/allow-namespaces=b", "kubectl annotate namespace b 'gateway.kedge.dev/hosts=y.x.test'",
	} {
		if !strings.Contains(conflict.Loser(), want) {
			t.Errorf("%q lacks %q", conflict.Loser(), want)
		}
	}
	for _, want := range []string{"The namespace b wants the host *.x.test", "kubectl annotate --namespace a ingress i0 gateway.kedge.dev/allow-namespaces=b"} {
		if !strings.Contains(conflict.Winner(), want) {
			t.Errorf("%q lacks %q", conflict.Winner(), want)
		}
	}
	more := Decide(claims("a x.test allow=c", "b x.test"), nil).Conflicts()[0]
	if text, want := more.Winner(), "kubectl annotate --overwrite --namespace a ingress i0 gateway.kedge.dev/allow-namespaces=c,b"; !strings.Contains(text, want) {
		t.Errorf("an owner who lets others in: %q lacks %q", text, want)
	}
	given := Decide(append(claims("a x.test"), assigned("b", "x.test")...), nil).Conflicts()[0]
	if text := given.Loser(); !given.IsAssigned() || !strings.Contains(text, "an administrator has given it") {
		t.Errorf("got %q", text)
	}
}

// TestMessagesWithoutCommand has conflicts that the owner cannot end, and a host that an administrator
// cannot give away: the messages name no command that would do nothing.
func TestMessagesWithoutCommand(t *testing.T) {
	of := claims("a x.test", "b x.test")
	of[0].Kind, of[0].Object = "HTTPRoute", &netv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "routes", Name: "web"}}
	elsewhere := Decide(of, nil).Conflicts()[0]
	if text := elsewhere.Loser() + elsewhere.Winner(); !strings.Contains(text, "the HTTPRoute routes/web") || strings.Contains(text, gateways.AllowAnnotation) {
		t.Errorf("of a route in another namespace: %q", text)
	}
	if text := Decide(claims("a -", "b -"), nil).Conflicts()[0].Loser(); strings.Contains(text, gateways.HostsAnnotation) {
		t.Errorf("of all hosts: %q", text)
	}
}

// TestAllowedOnce has an object with many hosts that lets many namespaces in. All hosts have one list.
func TestAllowedOnce(t *testing.T) {
	guests := make([]string, 1000)
	for i := range guests {
		guests[i] = fmt.Sprintf("guest-%d", i)
	}
	first := claims("a h.test allow=" + strings.Join(guests, ","))[0]
	all := make([]Claim, 1000)
	for i := range all {
		all[i] = first
		all[i].Host = fmt.Sprintf("h%d.test", i)
	}
	var allowed map[tenantHost]map[Object]sets.Set[string]
	if got := testing.AllocsPerRun(1, func() { allowed = allowedBy(all) }); got > 10_000 {
		t.Errorf("%d hosts and %d namespaces take %.0f allocations", len(all), len(guests), got)
	}
	if names := allowed[tenantHost{"a", "h999.test"}][first.Object]; len(names) != len(guests) {
		t.Errorf("the last host lets %d namespaces in", len(names))
	}
}

// TestRecord writes what owners have, and reads it again. Owners keep their ranks.
func TestRecord(t *testing.T) {
	first := Decide(claims("a *.x.test", "b z.test", "b -"), nil).Record(nil)
	if want := (Record{"*.x.test": {"a", 1}, "z.test": {"b", 2}, "": {"b", 3}}); !maps.Equal(first, want) {
		t.Fatalf("got %v", first)
	}
	data := Changes(nil, first)
	if again := ReadRecord(data); !maps.Equal(first, again) {
		t.Errorf("%v was read as %v", first, again)
	}
	if changes := Changes(data, first); len(changes) > 0 {
		t.Errorf("what is written already is written again: %q", changes)
	}
	second := Decide(claims("c z.test", "b -", "a *.x.test"), first).Record(first)
	if want := (Record{"*.x.test": {"a", 1}, "z.test": {"c", 4}, "": {"b", 3}}); !maps.Equal(second, want) {
		t.Errorf("got %v", second)
	}
	given := Decide(slices.Concat(claims("c z.test", "b -", "a *.x.test"), assigned("d", "z.test")), second).Record(second)
	if !maps.Equal(given, second) {
		t.Errorf("while an administrator has given a host to another namespace, the record is %v", given)
	}
	third := Decide(claims("b -"), second).Record(second)
	if changes := Changes(data, third); len(changes) != 1 || string(changes[listKey]) != listHeader+" b\n" {
		t.Errorf("got %q", changes)
	}
	var many []Claim
	for i := range maxRecorded + 9 {
		many = append(many, claims(fmt.Sprintf("a h%d.test", i))...)
	}
	if got := Decide(append(many, claims("b x.test")...), nil).Record(nil); len(got) != maxRecorded+1 {
		t.Errorf("a namespace has %d entries", len(got)-1)
	}
}

// TestLargeRecord has namespaces with more hosts of the longest names than a Secret takes. A namespace
// with few hosts keeps all of its entries, and the next run changes nothing.
func TestLargeRecord(t *testing.T) {
	var all []Claim
	for i := range 4 * maxRecorded {
		host := fmt.Sprintf("h%d.%s.test", i, strings.Repeat("a23456789.", 23))
		all = append(all, claims(fmt.Sprintf("n%d %s", i%4, host))...)
	}
	all = append(all, claims("z z.test")...)
	owners := Decide(all, nil)
	first := owners.Record(nil)
	size, count := 0, map[string]int{}
	for host, held := range first {
		size += 2*len(host) + len(held.Namespace)
		count[held.Namespace]++
	}
	if size > maxSize || first["z.test"].Namespace != "z" || count["n0"] != count["n3"] || count["n0"] < maxRecorded/4 {
		t.Errorf("a record of %d bytes has %v", size, count)
	}
	data := Changes(nil, first)
	if second := Decide(all, first).Record(first); len(Changes(data, second)) > 0 {
		t.Error("the next run changes the record")
	}
	if again := ReadRecord(data); len(again) != len(first) {
		t.Errorf("%d of %d entries were read", len(again), len(first))
	}
}

// TestSmallRecord bounds what a version of the Secret takes, of which the API server keeps many.
func TestSmallRecord(t *testing.T) {
	var all []Claim
	for i := range 1000 {
		all = append(all, claims(fmt.Sprintf("shop web-%d.example.com", i))...)
	}
	if size := len(Changes(nil, Decide(all, nil).Record(nil))[listKey]); size > 30_000 {
		t.Errorf("1,000 hosts take %d bytes", size)
	}
}

// TestStrangeRecord reads what nobody has written so.
func TestStrangeRecord(t *testing.T) {
	for _, value := range []string{"", "1", "x a", "1 "} {
		if got := ReadRecord(map[string][]byte{"x.test": []byte(value)}); len(got) > 0 {
			t.Errorf("%q is %v", value, got)
		}
	}
	for _, text := range []string{"", "\n", "x.test", "x.test \n", " \n\n"} {
		if got := ReadRecord(map[string][]byte{listKey: []byte(text)}); len(got) > 0 {
			t.Errorf("%q is %v", text, got)
		}
	}
	if got := ReadRecord(map[string][]byte{listKey: []byte("x.test a\nx.test b\n")}); got["x.test"].Namespace != "a" {
		t.Errorf("a host that is there twice is %v", got)
	}
}

// TestOlderRecord has a Secret that an older kedge has written, and may still write: each host has an entry.
func TestOlderRecord(t *testing.T) {
	data := map[string][]byte{"_": []byte("3 b"), "_.x.test": []byte("1 a"), "z.test": []byte("2 b")}
	first := ReadRecord(data)
	if want := (Record{"*.x.test": {"a", 1}, "z.test": {"b", 2}, "": {"b", 3}}); !maps.Equal(first, want) {
		t.Fatalf("got %v", first)
	}
	owners := Decide(claims("a *.x.test", "c z.test", "b -", "c y.test"), first)
	changes := Changes(data, owners.Record(first))
	if want := listHeader + "*.x.test a\n b\nz.test c\ny.test c\n"; string(changes[listKey]) != want {
		t.Errorf("the list is %q, want %q", string(changes[listKey]), want)
	}
	delete(changes, listKey)
	if _, removed := changes["z.test"]; len(changes) != 1 || !removed || changes["z.test"] != nil {
		t.Errorf("the entries change by %q", changes)
	}
	if single := readSingle(map[string][]byte{"x.test": []byte(Record{"123": {"a", 1}}.list())}); len(single) > 0 {
		t.Errorf("an older kedge reads the list as %v", single)
	}
	// Now the older kedge writes again. The hosts of the list come first, in the order of the list.
	data = map[string][]byte{listKey: []byte("z.test c\n"), "z.test": []byte("1 b"), "new.test": []byte("2 d")}
	if got, want := ReadRecord(data), (Record{"z.test": {"c", 1}, "new.test": {"d", 3}}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWider(t *testing.T) {
	for name, want := range map[string][]string{
		"":                  nil,
		"a.b.example":       {"*.b.example", "*.example", ""},
		"*.b.example":       {"*.example", ""},
		"localhost":         {""},
		"*.foo.example.com": {"*.example.com", "*.com", ""},
	} {
		if got := slices.Collect(Wider(name)); !slices.Equal(got, want) {
			t.Errorf("wider than %q are %q", name, got)
		}
	}
}
