// Package essential exempts the writes that a start of kedge needs from the webhooks and
// the admission policies of users. A webhook that fails closed on all objects and runs in
// a pod would otherwise refuse the registration of the node that the pod runs on, and so
// keep itself from running for ever. The API server uses this package.
//
// A part of this process writes kedge's own objects without being asked. A node, whose
// certificate an attacker may have, writes only what a policy has no use for: its sign of
// life, its health, and the ordinary tokens of its pods. Everything else is asked as
// usual: labels, annotations, taints and new Nodes of agents, and all objects of users.
// Upstream's and kedge's own plugins that restrict nodes are asked for all writes.
package essential

import (
	"context"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// plugins are the admission plugins that ask what users have configured.
var plugins = []string{mutatingpolicy.PluginName, mutatingwebhook.PluginName, validatingpolicy.PluginName, validatingwebhook.PluginName}

// Use makes an API server ask its users' webhooks and policies about all writes except the
// essential ones. audiences are those of the API itself, which the API server writes into the
// request of a token that names none.
func Use(options *genericoptions.AdmissionOptions, audiences []string) {
	options.Decorators = append(options.Decorators, admission.DecoratorFunc(func(plugin admission.Interface, name string) admission.Interface {
		return decorate(plugin, name, audiences)
	}))
}

// decorate returns the plugin in a form that is not asked about essential writes, if it is
// one of plugins.
func decorate(plugin admission.Interface, name string, audiences []string) admission.Interface {
	if !slices.Contains(plugins, name) {
		return plugin
	}
	return &gate{plugin, audiences}
}

// gate passes all writes to a plugin except the essential ones.
type gate struct {
	admission.Interface
	audiences []string
}

var (
	_ admission.MutationInterface   = (*gate)(nil)
	_ admission.ValidationInterface = (*gate)(nil)
)

// Admit implements admission.MutationInterface.
func (g *gate) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, mutates := g.Interface.(admission.MutationInterface)
	if !mutates {
		return nil
	}
	return g.ask(ctx, a, func() error { return plugin.Admit(ctx, a, o) })
}

// Validate implements admission.ValidationInterface.
func (g *gate) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, validates := g.Interface.(admission.ValidationInterface)
	if !validates {
		return nil
	}
	return g.ask(ctx, a, func() error { return plugin.Validate(ctx, a, o) })
}

// ask calls a plugin, unless the write is essential. The new Node of a server's kubelet is
// asked about, because users' webhooks add labels to Nodes, and is written whatever the
// answer.
func (g *gate) ask(ctx context.Context, a admission.Attributes, plugin func() error) error {
	caller, ours := inprocess.Caller(ctx)
	switch {
	case ours && caller.GetName() == a.GetUserInfo().GetName():
		if !ofThisProcess(caller.GetName(), a, g.audiences) {
			return plugin()
		}
		if a.GetOperation() == admission.Create && a.GetResource().GroupResource() == nodes {
			if err := plugin(); err != nil {
				logrus.WithField("component", "apiserver").Warnf("Node %s of this server is registered although a webhook or a policy refuses it: %v", a.GetName(), err)
			}
		}
		return nil
	case ofNode(a.GetUserInfo(), a, g.audiences), ofServer(a):
		return nil
	}
	return plugin()
}

var (
	nodes           = schema.GroupResource{Resource: "nodes"}
	pods            = schema.GroupResource{Resource: "pods"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	endpoints       = schema.GroupResource{Resource: "endpoints"}
	endpointSlices  = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	leases          = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	csiNodes        = schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}
	tokenReviews    = schema.GroupResource{Group: "authentication.k8s.io", Resource: "tokenreviews"}
	accessReviews   = schema.GroupResource{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
	snapshots       = schema.GroupResource{Group: "kedge.dev", Resource: "snapshotfiles"}
)

// These in-process users write what users of the cluster have written, or what follows from it.
var forUsers = []string{"system:kedge:manifests", "system:kedge:helm"}

// ofThisProcess tells whether a write of a user of this process is essential. No request
// from outside of the process has such a user.
func ofThisProcess(name string, a admission.Attributes, audiences []string) bool {
	resource := a.GetResource().GroupResource()
	switch {
	case name == user.APIServerUser, name == "system:kedge:bootstrap":
		return true
	case slices.Contains(forUsers, name):
		return false
	case strings.HasPrefix(name, "system:kedge:"):
		return a.GetNamespace() == metav1.NamespaceSystem || resource == nodes || resource == snapshots || resource == tokenReviews
	case strings.HasPrefix(name, "system:serviceaccount:kube-system:"):
		// The controllers. A pod of a user gets no traffic without endpoints, and no
		// node is Ready to the scheduler with the taint of one that was down.
		return resource == nodes || resource == endpoints || resource == endpointSlices
	case strings.HasPrefix(name, nodeUser):
		return resource == nodes || resource == leases || resource == csiNodes || resource == tokenReviews || resource == accessReviews ||
			resource == pods && a.GetSubresource() == "status" || resource == serviceAccounts && a.GetSubresource() == "token" && ordinary(a, audiences)
	}
	return false
}
