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

// The DNS of a node never reads pods. Pods have values of environment variables, and root on a node has
// the rights of the node's DNS. "pods verified" is answered from the EndpointSlices, which all
// nodes read anyway.

// records is what a kubernetes handler answers from. It is the interface dnsController of CoreDNS's
// plugin/kubernetes/controller.go, which is not exported.
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

// podsOfServices knows only those pods that are endpoints of a Service.
type podsOfServices struct{ records }

// PodIndex returns the pods that have this address, with their names and namespaces.
func (p podsOfServices) PodIndex(ip string) (pods []*object.Pod) {
	if len(p.EndpointsList()) == 0 {
		return nil // EpIndexReverse needs an index that does not exist with "noendpoints"
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

// withoutPods returns a handler of the stanza that reads no pods, even if the stanza asks for them. It
// changes the stanza, because the result of ParseStanza cannot be changed.
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
