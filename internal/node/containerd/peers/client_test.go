package peers

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// newPeers returns Peers that know this node and the given nodes, with their answers. Nodes whose
// names begin with "server" are servers.
func newPeers(t *testing.T, nodes map[string]http.HandlerFunc) *Peers {
	t.Helper()
	p := New(Config{NodeName: "this"})
	addresses, indexer := map[string]string{}, cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	add := func(name string, ready corev1.ConditionStatus) {
		if err := indexer.Add(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: roleOf(name)},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	add("this", corev1.ConditionTrue)
	add("down", corev1.ConditionUnknown)
	for name, handler := range nodes {
		add(name, corev1.ConditionTrue)
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		addresses[name] = server.Listener.Addr().String()
	}
	lister := listers.NewNodeLister(indexer)
	p.nodes.Store(&lister)
	for _, transport := range []*http.Transport{p.content, p.tags} {
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			name, _, _ := strings.Cut(address, ":")
			if addresses[name] == "" {
				t.Errorf("%s is asked", address)
			}
			return new(net.Dialer).DialContext(ctx, network, addresses[name])
		}
		t.Cleanup(transport.CloseIdleConnections)
	}
	return p
}

func roleOf(name string) map[string]string {
	if !strings.HasPrefix(name, "server") {
		return nil
	}
	return map[string]string{"node-role.kubernetes.io/control-plane": "true"}
}

func TestClient(t *testing.T) {
	missing := http.NotFound
	broken := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
	there := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead && r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, r.URL.String()+" "+r.Header.Get("Range"))
	}
	gone := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, test := range map[string]struct {
		nodes  map[string]http.HandlerFunc
		status int
	}{
		"no other node": {nil, 404},
		"none has it":   {map[string]http.HandlerFunc{"a": missing, "b": gone, "c": missing, "d": missing}, 404},
		"one has it":    {map[string]http.HandlerFunc{"a": missing, "b": gone, "c": missing, "d": there, "e": broken}, 200},
		"one is broken": {map[string]http.HandlerFunc{"a": broken}, 404},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeers(t, test.nodes)
			client := http.Client{Transport: p}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://nodes.invalid/v2/app/blobs/x?ns=registry.test", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Range", "bytes=1-")
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != test.status {
				t.Errorf("got %s, %v, want %d", response.Status, err, test.status)
			}
			if want := "/v2/app/blobs/x?ns=registry.test bytes=1-"; test.status == 200 && string(body) != want {
				t.Errorf("got %q, want %q", body, want)
			}
			if name == "none has it" { // node b was certainly asked
				if left, err := p.others(false); err != nil || slices.Contains(left, "b") || len(left) != 3 {
					t.Errorf("asks %v next, %v", left, err)
				}
			}
		})
	}
}

// TestTags checks that only servers are asked what a tag stands for.
func TestTags(t *testing.T) {
	says := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "what it says") }
	lies := func(w http.ResponseWriter, r *http.Request) {
		if isTag(r.URL.Path) {
			t.Errorf("an agent is asked for %s", r.URL.Path)
		}
		_, _ = io.WriteString(w, "what it says")
	}
	const digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, test := range []struct {
		path   string
		server http.HandlerFunc
		status int
	}{
		{"app/manifests/1", says, 200},
		{"app/manifests/1", http.NotFound, 404},
		{"manifests/manifests/blobs", http.NotFound, 404},
		{"app/manifests/" + digest, http.NotFound, 200},
		{"app/blobs/" + digest, http.NotFound, 200},
	} {
		p := newPeers(t, map[string]http.HandlerFunc{"a": lies, "b": lies, "server-1": test.server})
		response, err := (&http.Client{Transport: p}).Get("http://nodes.invalid/v2/" + test.path + "?ns=registry.test")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.status {
			t.Errorf("%s: got %s, want %d", test.path, response.Status, test.status)
		}
	}
}

func TestBeforeTheNodesAreKnown(t *testing.T) {
	response, err := (&http.Client{Transport: New(Config{})}).Get("http://nodes.invalid/v2/a/manifests/1")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("got %s", response.Status)
	}
}
