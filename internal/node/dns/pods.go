package dns

import (
	"context"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
)

// No node's DNS reads pods: their objects have the values of their environment, and
// whoever is root on a node has the rights of its DNS. What "pods verified" asks for
// is answered out of the EndpointSlices, which all nodes read anyway.

// records are what a kubernetes handler answers from: dnsController of CoreDNS's
// plugin/kubernetes/controller.go, which has no exported name.
//
//upstream:relies-on github.com/coredns/coredns/plugin/kubernetes/controller.go dnsController
type records interface {
	ServiceList() []*object.Service
	EndpointsList() []*object.Endpoints
	ServiceImportList() []*object.ServiceImport
	SvcIndex(string) []*object.Service
	SvcIndexReverse(string) []*object.Service
	SvcExtIndexReverse(string) []*object.Service
	SvcImportIndex(string) []*object.ServiceImport
	PodIndex(string) []*object.Pod
	EpIndex(string) []*object.Endpoints
	EpIndexReverse(string) []*object.Endpoints
	McEpIndex(string) []*object.MultiClusterEndpoints
	GetNodeByName(context.Context, string) (*corev1.Node, error)
	GetNamespaceByName(string) (*object.Namespace, error)
	Run()
	HasSynced() bool
	Stop() error
	Modified(kubernetes.ModifiedMode) int64
}

// podsOfServices knows the pods that are endpoints of a Service, and no others.
type podsOfServices struct{ records }

// PodIndex returns the pods that have an address, with their names and namespaces.
func (p podsOfServices) PodIndex(ip string) (pods []*object.Pod) {
	if len(p.EndpointsList()) == 0 {
		return nil // EpIndexReverse wants an index, which "noendpoints" leaves out
	}
	for _, endpoints := range p.EpIndexReverse(ip) {
		for _, subset := range endpoints.Subsets {
			i := slices.IndexFunc(subset.Addresses, func(a object.EndpointAddress) bool { return a.IP == ip })
			if i >= 0 && subset.Addresses[i].TargetRefName != "" {
				pods = append(pods, &object.Pod{Name: subset.Addresses[i].TargetRefName, Namespace: endpoints.Namespace, PodIPs: []string{ip}})
				break
			}
		}
	}
	return pods
}

// withoutPods returns the handler of a stanza that reads no pods, of which the
// stanza may want to: ParseStanza's result cannot be told so.
//
//upstream:relies-on github.com/coredns/coredns/plugin/kubernetes/setup.go ParseStanza
func withoutPods(c *caddy.Controller, stanza caddyfile.Dispenser) (*kubernetes.Kubernetes, error) {
	tokens := []caddyfile.Token{{File: stanza.File(), Line: stanza.Line(), Text: stanza.Val()}}
	for before := ""; stanza.Next(); before = stanza.Val() {
		token := caddyfile.Token{File: stanza.File(), Line: stanza.Line(), Text: stanza.Val()}
		if before == "pods" && token.Text == "verified" {
			token.Text = "insecure"
		}
		tokens = append(tokens, token)
	}
	again := *c
	again.Dispenser = caddyfile.NewDispenserTokens(c.File(), tokens)
	again.Next()
	return kubernetes.ParseStanza(&again)
}
