package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// atOnce is how many nodes are asked at the same time whether they have something.
const atOnce = 3

// RoundTrip implements http.RoundTripper: it asks nodes, in random order, for what
// a registry would be asked for, and answers with the first that has it, or as a
// registry that does not have it.
func (p *Peers) RoundTrip(request *http.Request) (*http.Response, error) {
	names, err := p.others()
	if err != nil {
		return nil, err
	}
	for len(names) > 0 {
		some := names[:min(atOnce, len(names))]
		names = names[len(some):]
		for _, name := range p.have(request, some) {
			response, err := p.ask(request.Context(), request, request.Method, name)
			if err == nil && response.StatusCode < http.StatusBadRequest {
				p.log.Debugf("%s has %s", name, request.URL.Path)
				return response, nil
			}
			if err == nil {
				response.Body.Close()
			}
		}
	}
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)), Request: request,
	}, nil
}

// have asks nodes whether they have something, and returns those that do, the
// first to answer first.
func (p *Peers) have(request *http.Request, names []string) []string {
	ctx, cancel := context.WithTimeout(request.Context(), headerTimeout)
	defer cancel()
	answers := make(chan string, len(names))
	for _, name := range names {
		go func() {
			response, err := p.ask(ctx, request, http.MethodHead, name)
			switch {
			case err != nil:
				p.log.Debugf("ask %s: %v", name, err)
				name = ""
			case response.StatusCode != http.StatusOK:
				name = ""
			}
			if err == nil {
				response.Body.Close()
			}
			answers <- name
		}()
	}
	var found []string
	for range names {
		if name := <-answers; name != "" {
			found = append(found, name)
		}
	}
	return found
}

// ask sends a request to a node.
func (p *Peers) ask(ctx context.Context, request *http.Request, method, name string) (*http.Response, error) {
	sent := request.Clone(ctx)
	sent.Method, sent.Host = method, ""
	sent.URL.Scheme, sent.URL.Host = "https", net.JoinHostPort(name, strconv.Itoa(Port))
	if method == http.MethodHead {
		sent.Header.Del("Range")
	}
	return p.transport.RoundTrip(sent)
}

// others returns the names of all other nodes, those that are not Ready last.
func (p *Peers) others() ([]string, error) {
	lister := p.nodes.Load()
	if lister == nil {
		return nil, nil
	}
	nodes, err := (*lister).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var ready, rest []string
	for _, i := range rand.Perm(len(nodes)) {
		switch node := nodes[i]; {
		case node.Name == p.cfg.NodeName:
		case isReady(node):
			ready = append(ready, node.Name)
		default:
			rest = append(rest, node.Name)
		}
	}
	return append(ready, rest...), nil
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// dial connects to a node by its name, and sees to it that it is the one.
func (p *Peers) dial(ctx context.Context, _, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	node, err := (*p.nodes.Load()).Get(name)
	if err != nil {
		return nil, err
	}
	authority, err := p.authority()
	if err != nil {
		return nil, err
	}
	config := p.cfg.TLS.Clone()
	config.RootCAs, config.ServerName = authority, name
	faults := []error{errors.New("no address of it leads there")}
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
