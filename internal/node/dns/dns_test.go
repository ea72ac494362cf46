package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// registered is Register for all tests of this process.
var registered = sync.OnceValues(Register)

// cluster adds the objects of a small cluster.
func cluster(t *testing.T, api *fakeAPI) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "default", ResourceVersion: "1"}
	}
	service := func(name string, spec corev1.ServiceSpec) {
		api.send(t, "ADDED", "services", &corev1.Service{ObjectMeta: meta(name), Spec: spec})
	}
	https := []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}}
	api.send(t, "ADDED", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", ResourceVersion: "1"}})
	service("kubernetes", corev1.ServiceSpec{ClusterIP: "10.43.0.1", ClusterIPs: []string{"10.43.0.1"}, Ports: https})
	service("db", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, Ports: https})
	service("elsewhere", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.com"})
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta("db-1"),
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.42.0.7"}, Hostname: new("db-0"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{Addresses: []string{"10.42.1.7"}, Hostname: new("db-1"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
		},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(443)), Protocol: new(corev1.ProtocolTCP)}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	api.send(t, "ADDED", "endpointslices", slice)
}

// upstream answers every A question with 203.0.113.9. It returns its address, as a resolv.conf could
// name it.
func upstream(t *testing.T) string {
	packets, err := net.ListenPacket("udp", "127.0.0.53:53")
	must(t, err)
	server := &mdns.Server{PacketConn: packets, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, r *mdns.Msg) {
		reply := new(mdns.Msg).SetReply(r)
		record, err := mdns.NewRR(r.Question[0].Name + " 60 IN A 203.0.113.9")
		if err == nil && r.Question[0].Qtype == mdns.TypeA {
			reply.Answer = append(reply.Answer, record)
		}
		_ = w.WriteMsg(reply)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(file, []byte("nameserver 127.0.0.53\n"), 0o644))
	return file
}

// ask returns the answer's records without their names and times to live, or the reply's code if that
// is not NOERROR.
func ask(t *testing.T, network, name string, kind uint16) string {
	t.Helper()
	question := new(mdns.Msg).SetQuestion(name, kind)
	client := mdns.Client{Net: network, Timeout: 5 * time.Second}
	reply, _, err := client.Exchange(question, "192.0.2.1:10053")
	if err != nil {
		return err.Error()
	}
	if reply.Rcode != mdns.RcodeSuccess {
		return mdns.RcodeToString[reply.Rcode]
	}
	var records []string
	for _, record := range reply.Answer {
		records = append(records, strings.TrimPrefix(record.String(), record.Header().String()))
	}
	slices.Sort(records)
	return strings.Join(records, ", ")
}

// eventually waits until got returns want. A watch may take a moment.
func eventually(t *testing.T, want string, got func() string) {
	t.Helper()
	last := ""
	for range 600 {
		if last = got(); last == want {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("got %q in the end, want %q", last, want)
}

// TestDNS runs a node's DNS from start to stop.
func TestDNS(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	addAddress(t, "lo", "192.0.2.1/32")
	resolvConf := upstream(t)
	api := newFakeAPI(t)
	cluster(t, api)
	folder := t.TempDir()
	zone := filepath.Join(folder, "zone")
	must(t, os.WriteFile(zone, []byte("K10secret::server:0123456789\n"), 0o600))
	plugins, err := registered()
	must(t, err)
	before := goroutines()
	component := New(Config{
		Plugins:       plugins,
		Client:        api.config(),
		Objects:       api.config(),
		Informers:     api.informers(t),
		NodeName:      "node1",
		NodeIPs:       []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		ClusterDomain: "cluster.local",
		ClusterDNS:    []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		ResolvConf:    resolvConf,
		Folder:        folder,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- component.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the DNS server ended: %v", err)
	}

	records := []struct {
		name string
		kind uint16
		want string
	}{
		{"kubernetes.default.svc.cluster.local.", mdns.TypeA, "10.43.0.1"},
		{"kubernetes.default.svc.cluster.local.", mdns.TypeAAAA, ""},
		{"db.default.svc.cluster.local.", mdns.TypeA, "10.42.0.7, 10.42.1.7"},
		{"db-1.db.default.svc.cluster.local.", mdns.TypeA, "10.42.1.7"},
		{"_https._tcp.kubernetes.default.svc.cluster.local.", mdns.TypeSRV, "0 100 443 kubernetes.default.svc.cluster.local."},
		{"_https._tcp.db.default.svc.cluster.local.", mdns.TypeSRV, "0 50 443 db-0.db.default.svc.cluster.local., 0 50 443 db-1.db.default.svc.cluster.local."},
		{"1.0.43.10.in-addr.arpa.", mdns.TypePTR, "kubernetes.default.svc.cluster.local."},
		{"7.1.42.10.in-addr.arpa.", mdns.TypePTR, "db-1.db.default.svc.cluster.local."},
		{"10-42-0-9.default.pod.cluster.local.", mdns.TypeA, "10.42.0.9"},
		{"elsewhere.default.svc.cluster.local.", mdns.TypeA, "203.0.113.9, www.example.com."},
		{"example.com.", mdns.TypeA, "203.0.113.9"},
		{"missing.default.svc.cluster.local.", mdns.TypeA, "NXDOMAIN"},
	}
	for _, record := range records {
		for _, network := range []string{"udp", "tcp"} {
			if got := ask(t, network, record.name, record.kind); got != record.want {
				t.Errorf("%s %s by %s: got %q, want %q", mdns.TypeToString[record.kind], record.name, network, got, record.want)
			}
		}
	}

	// The user's parts follow: a good one, then bad ones, then another good one.
	custom := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: customName, Namespace: namespace, ResourceVersion: "1"}}
	set := func(kind string, data map[string]string) {
		custom = custom.DeepCopy()
		custom.ResourceVersion += "1"
		custom.Data = data
		api.send(t, kind, "configmaps", custom)
	}
	set("ADDED", map[string]string{
		"lan.override": "hosts {\n 192.0.2.80 printer.lan\n fallthrough\n}",
		"alias.server": "alias.test:53 {\n kubernetes alias.test {\n  pods verified\n }\n}\n10.9.0.0/16 2001:db8::/32 {\n whoami\n}",
	})
	eventually(t, "192.0.2.80", func() string { return ask(t, "udp", "printer.lan.", mdns.TypeA) })
	eventually(t, "10.43.0.1", func() string { return ask(t, "udp", "kubernetes.default.svc.alias.test.", mdns.TypeA) })
	eventually(t, "10.42.1.7", func() string { return ask(t, "udp", "10-42-1-7.default.pod.alias.test.", mdns.TypeA) })
	for _, unverified := range []string{"10-42-1-8.default.pod.alias.test.", "10-42-1-7.kube-system.pod.alias.test."} {
		if got := ask(t, "udp", unverified, mdns.TypeA); got != "NXDOMAIN" {
			t.Errorf("%s: got %q", unverified, got)
		}
	}
	if api.asked("pods") {
		t.Error("the DNS reads pods")
	}
	for _, bad := range []map[string]string{
		{"lan.override": "hosts {\n"},                                                       // cannot be parsed
		{"lan.override": "dns64 not-a-prefix"},                                              // cannot be set up
		{"lan.override": "file " + zone + " lan"},                                           // not a zone
		{"own.server": ".:53 {\n whoami\n}"},                                                // the zone exists already
		{"own.server": "a.test {\n kubernetes a.test {\n endpoint http://192.0.2.1\n }\n}"}, // another API server
	} {
		set("MODIFIED", bad)
		var refused *corev1.Event
		select {
		case refused = <-api.events:
		case <-time.After(30 * time.Second):
			t.Fatalf("no event about %v", bad)
		}
		if refused.Reason != "CorefileRefused" || refused.InvolvedObject.Name != customName || refused.InvolvedObject.ResourceVersion != custom.ResourceVersion {
			t.Errorf("unexpected event %+v", refused)
		}
		t.Log(refused.Message)
		if strings.Contains(refused.Message, "K10secret") {
			t.Error("the event shows the file")
		}
		if got := ask(t, "udp", "printer.lan.", mdns.TypeA); got != "192.0.2.80" {
			t.Errorf("after a bad part got %q", got)
		}
	}
	set("MODIFIED", map[string]string{"lan.override": "hosts {\n 192.0.2.81 printer.lan\n fallthrough\n}"})
	eventually(t, "192.0.2.81", func() string { return ask(t, "udp", "printer.lan.", mdns.TypeA) })
	set("DELETED", nil)
	eventually(t, "203.0.113.9", func() string { return ask(t, "udp", "printer.lan.", mdns.TypeA) })

	// Without the API the known records stay, even through a reload.
	api.stop()
	for _, record := range records {
		if got := ask(t, "udp", record.name, record.kind); got != record.want {
			t.Errorf("without the API: %s %s: got %q, want %q", mdns.TypeToString[record.kind], record.name, got, record.want)
		}
	}

	cancel()
	must(t, <-done)
	if err := probe(netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("bind the port after the stop: %v", err)
	}
	eventually(t, "", func() string {
		left := ""
		for id, stack := range goroutines() {
			//upstream:relies-on github.com/coredns/coredns/plugin/pkg/proxy/proxy.go NewProxy
			//upstream:relies-on github.com/coredns/caddy/caddy.go Instance.Stop
			// The forward plugin ends this goroutine in a finalizer (proxy.go in
			// plugin/pkg/proxy) that never runs for the last instance: caddy's list of
			// instances keeps it after its end (Instance.Stop in caddy.go).
			if strings.Contains(stack, "proxy.(*Transport).connManager") {
				continue
			}
			if _, was := before[id]; !was && strings.Contains(stack, "coredns") {
				left += stack + "\n\n"
			}
		}
		return left
	})
}

// goroutines returns the stacks of all goroutines, by their IDs.
func goroutines() map[string]string {
	buffer := make([]byte, 1<<20)
	stacks := map[string]string{}
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		var id string
		if _, err := fmt.Sscanf(stack, "goroutine %s", &id); err == nil {
			stacks[id] = stack
		}
	}
	return stacks
}

// TestStopWhileStarting cancels a start at every moment. CoreDNS itself does not end if it is stopped
// before it serves.
func TestStopWhileStarting(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	addAddress(t, "lo", "192.0.2.1/32")
	api := newFakeAPI(t)
	cluster(t, api)
	plugins, err := registered()
	must(t, err)
	for i := range 40 {
		component := New(Config{
			Plugins:       plugins,
			Client:        api.config(),
			Objects:       api.config(),
			Informers:     api.informers(t),
			NodeName:      "node1",
			NodeIPs:       []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			ClusterDomain: "cluster.local",
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		must(t, component.Run(ctx, func() {}))
		cancel()
	}
}

// TestPortTaken checks that the error says what to do.
func TestPortTaken(t *testing.T) {
	if !inNetNS(t) {
		return
	}
	addAddress(t, "lo", "192.0.2.1/32")
	other, err := net.ListenPacket("udp", "192.0.2.1:10053")
	must(t, err)
	defer other.Close()
	if err := probe(netip.MustParseAddr("192.0.2.1")); err == nil || !strings.Contains(err.Error(), "taken by another program") {
		t.Errorf("got %v", err)
	}
	if err := probe(netip.MustParseAddr("192.0.2.2")); err == nil || !strings.Contains(err.Error(), "this host has no address") {
		t.Errorf("got %v", err)
	}
}
