package peers

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// TestProof checks that nodes prove their role by their certificates: a label does not make an
// agent a server, and the certificate of a deleted node is refused.
func TestProof(t *testing.T) {
	dir, ips := datadir.Dir(t.TempDir()), []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	if err := dir.MakeServer(); err != nil {
		t.Fatal(err)
	}
	if err := dir.MakeAgent(); err != nil {
		t.Fatal(err)
	}
	clock := pki.NewClock(filepath.Join(t.TempDir(), "clock"))
	certificates, err := pki.EnsureServer(pki.ServerOptions{Dir: dir, Clock: clock, NodeName: "server-1", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	lister := listers.NewNodeLister(known)
	// peer makes the Peers of a node and serves them on an address of their own.
	peer := func(name string, config Config) *Peers {
		config.NodeName, config.CAFile = name, certificates.ClientCAFile
		p := New(config)
		p.nodes.Store(&lister)
		return p
	}
	serve := func(p *Peers) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
		server := &http.Server{Handler: p.admit(hello), TLSConfig: &tls.Config{GetConfigForClient: p.serverTLS}}
		go func() { _ = server.ServeTLS(listener, "", "") }()
		t.Cleanup(func() { _ = server.Close() })
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	add := func(name, uid string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: roleOf("server")}}
		node.Annotations = map[string]string{registration.NodeAnnotation: uid}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		if err := known.Add(node); err != nil {
			t.Fatal(err)
		}
	}
	joined := func(name string) *pki.Node {
		folder := datadir.Dir(t.TempDir())
		if err := folder.MakeAgent(); err != nil {
			t.Fatal(err)
		}
		node := pki.NewNode(folder, name, clock)
		requests, err := node.Requests(false)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := certificates.SignNode(name, "uid-of-"+name, ips, requests)
		if err == nil {
			err = node.Accept(certificates.ServerCA(), certificates.ClientCA(), signed)
		}
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	configOf := func(name string) Config {
		node := joined(name)
		return Config{CertFile: node.ServingCertFile(), KeyFile: node.ServingKeyFile(), TLS: node.TLS(pki.NodeUser(name))}
	}

	server := peer("server-1", Config{
		CertFile: certificates.KubeletServingCertFile, KeyFile: certificates.KubeletServingKeyFile,
		TLS: certificates.NodeTLS(), ServerCertificate: certificates.ServingCertificate,
	})
	thief := configOf("thief")
	// Root on an agent may present any of the agent's certificates as a server's.
	thief.ServerCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(thief.CertFile, thief.KeyFile)
		return &pair, err
	}
	ports := map[string]string{"server-1": serve(server), "thief": serve(peer("thief", thief))}
	add("server-1", "uid-of-server-1")
	add("thief", "uid-of-thief")
	add("agent-1", "uid-of-agent-1")
	add("heir", "another")
	add("older", "")
	agent := peer("agent-1", configOf("agent-1"))
	gone := peer("gone", configOf("gone"))
	former, older := peer("heir", configOf("heir")), peer("older", configOf("older"))

	type dial func(context.Context, string, string) (net.Conn, error)
	for name, test := range map[string]struct {
		dial   dial
		node   string
		status int // 0: no connection
	}{
		"a server says what tags are":       {agent.dialServer, "server-1", 200},
		"a server gives content":            {agent.dialNode, "server-1", 200},
		"an agent gives content":            {agent.dialNode, "thief", 200},
		"an agent does not pass for one":    {agent.dialServer, "thief", 0},
		"who is gone gets nothing":          {gone.dialNode, "server-1", 403},
		"who is gone gets no tags":          {gone.dialServer, "server-1", 403},
		"who had the name gets nothing":     {former.dialNode, "server-1", 403},
		"an older node gets content":        {older.dialNode, "server-1", 200},
		"a node that the cluster lacks":     {agent.dialNode, "nowhere", 0},
		"a server asks another node's data": {server.dialNode, "thief", 200},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := test.dial(t.Context(), "tcp", net.JoinHostPort(test.node, ports[test.node]))
			if (err == nil) != (test.status != 0) {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				t.Log(err)
				return
			}
			defer conn.Close()
			transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Get("https://" + test.node + "/")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != test.status {
				t.Errorf("got %s, want %d", response.Status, test.status)
			}
		})
	}
}
