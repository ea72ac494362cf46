package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

const (
	// atOnce is how many nodes are asked at the same time whether they have an object.
	atOnce = 3
	// shunned is how long a node that could not be reached is not asked again. It may be behind
	// NAT at another site.
	shunned = time.Minute
)

// RoundTrip implements http.RoundTripper. It sends the request to the other nodes in random order,
// as to a registry, and returns the first answer with the object. If no node has the object, it
// returns 404 Not Found. Only servers are asked what a tag stands for.
func (p *Peers) RoundTrip(request *http.Request) (*http.Response, error) {
	names, err := p.others(isTag(request.URL.Path))
	if err != nil {
		return nil, err
	}
	for len(names) > 0 {
		some := names[:min(atOnce, len(names))]
		name := p.first(request, some)
		if name == "" {
			names = names[len(some):]
			continue
		}
		response, err := p.ask(request.Context(), request, request.Method, name)
		if err == nil && response.StatusCode < http.StatusBadRequest {
			p.log.Debugf("%s has %s", name, request.URL.Path)
			return response, nil
		}
		if err == nil {
			response.Body.Close()
		}
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
	}
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: request,
	}, nil
}

// first asks the nodes whether they have an object. It returns the first node that has it, or "".
func (p *Peers) first(request *http.Request, names []string) string {
	ctx, cancel := context.WithTimeout(request.Context(), headerTimeout)
	having := make(chan string, len(names))
	var asking sync.WaitGroup
	for _, name := range names {
		asking.Go(func() {
			response, err := p.ask(ctx, request, http.MethodHead, name)
			if err != nil {
				return
			}
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				having <- name
			}
		})
	}
	// The other requests may end by themselves: to cancel a request costs its connection.
	go func() {
		asking.Wait()
		cancel()
		close(having)
	}()
	return <-having
}

// ask sends a request to a node.
func (p *Peers) ask(ctx context.Context, request *http.Request, method, name string) (*http.Response, error) {
	sent := request.Clone(ctx)
	sent.Method, sent.Host = method, ""
	sent.URL.Scheme, sent.URL.Host = "https", net.JoinHostPort(name, strconv.Itoa(Port))
	if method == http.MethodHead {
		sent.Header.Del("Range")
	}
	transport := p.content
	if isTag(request.URL.Path) {
		transport = p.tags
	}
	response, err := transport.RoundTrip(sent)
	if err != nil && request.Context().Err() == nil {
		p.log.Debugf("ask %s: %v", name, err)
		p.unreachable.Store(name, time.Now())
	}
	return response, err
}

// isTag tells whether a path names a manifest by its tag. All other paths end in a digest.
func isTag(path string) bool {
	rest, object := splitPath(path)
	return strings.HasSuffix(rest, "/manifests") && !isDigest(object)
}

// others returns the names of the other nodes that may answer, in random order. If servers is set,
// it returns only servers. A node proves that it is a server when it is dialed.
func (p *Peers) others(servers bool) ([]string, error) {
	lister := p.nodes.Load()
	if lister == nil {
		return nil, nil
	}
	nodes, err := (*lister).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var names []string
	for _, node := range nodes {
		failed, _ := p.unreachable.Load(node.Name)
		if at, ok := failed.(time.Time); ok && time.Since(at) < shunned || node.Name == p.cfg.NodeName || !nodeobject.IsReady(node) || servers && !isServer(node) {
			continue
		}
		names = append(names, node.Name)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names, nil
}

// isServer tells whether a node has the label of a server, which no node can give to itself
// (NodeRestriction).
func isServer(node *corev1.Node) bool {
	return node.Labels["node-role.kubernetes.io/control-plane"] != "" || node.Labels["node-role.kubernetes.io/etcd"] != ""
}

// dialNode connects to a node by its name and verifies that the node with this name answers.
func (p *Peers) dialNode(ctx context.Context, _, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	authority, err := p.authority()
	if err != nil {
		return nil, err
	}
	return p.dial(ctx, address, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: authority, ServerName: name,
		Time: p.cfg.TLS.Time, GetClientCertificate: p.cfg.TLS.GetClientCertificate,
		VerifyConnection: func(state tls.ConnectionState) error {
			node, err := p.judge(state.PeerCertificates[0])
			if err == nil && node.Name != name {
				return fmt.Errorf("the node at this address is %s", node.Name)
			}
			return err
		},
	})
}

// dialServer connects to a server's node by its name and verifies that a server answers: it must
// have the key of a certificate that only servers have.
func (p *Peers) dialServer(ctx context.Context, _, address string) (net.Conn, error) {
	return p.dial(ctx, address, p.cfg.TLS)
}

// dial connects to the address NAME:PORT of a node. It tries all addresses of the node.
func (p *Peers) dial(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	node, err := (*p.nodes.Load()).Get(name)
	if err != nil {
		return nil, err
	}
	faults := []error{errors.New("no address of node " + name + " can be reached")}
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}).DialContext(ctx, "tcp", net.JoinHostPort(a.Address, port))
		if err == nil {
			return conn, nil
		}
		faults = append(faults, err)
	}
	return nil, errors.Join(faults...)
}
