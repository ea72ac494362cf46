// Package restriction is the admission plugin KedgeRestriction, which complements
// upstream's NodeRestriction: it limits nodes, and users of one namespace, to their
// own objects. The API server runs it, see the apiserver package.
//
// Rules about nodes that need only the request itself are in /manifests/nodes.yaml, a
// ValidatingAdmissionPolicy. This package has the rules that read other objects,
// change what is written, or warn. They use no memory as long as nobody uses their
// kinds. They are in force from the first request on, and nobody can delete them.
package restriction

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// Name is the plugin's name among the API server's arguments.
const Name = "KedgeRestriction"

// systemNamespace is where the control plane's own objects are.
const systemNamespace = "kube-system"

// These are the kinds that the plugin checks.
var (
	claims          = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes         = schema.GroupResource{Resource: "persistentvolumes"}
	capacities      = schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}
	nodes           = schema.GroupResource{Resource: "nodes"}
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	services        = schema.GroupResource{Resource: "services"}
	networkPolicies = schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"}
	leases          = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	helmCharts      = schema.GroupResource{Group: "helm.cattle.io", Resource: "helmcharts"}
	helmConfigs     = schema.GroupResource{Group: "helm.cattle.io", Resource: "helmchartconfigs"}
)

// Config is what the plugin has to know.
type Config struct {
	// Unenforced says that nothing enforces NetworkPolicies: the user has disabled that, and
	// brings no other network.
	Unenforced bool
	// VIP is the address of the control plane that servers share, or zero.
	VIP netip.Addr
	// Pods are the ranges of the addresses of pods.
	Pods []netip.Prefix
}

// Register adds the plugin to an API server's plugins, after all others, so that it
// also checks their changes.
func Register(options *genericoptions.AdmissionOptions, cfg Config) {
	options.Plugins.Register(Name, func(io.Reader) (admission.Interface, error) {
		return &plugin{cfg: cfg}, nil
	})
	options.RecommendedPluginOrder = append(slices.Clone(options.RecommendedPluginOrder), Name)
}

// plugin is the admission plugin.
type plugin struct {
	cfg Config
	// client and custom read other objects that rules need.
	client     kubernetes.Interface
	custom     dynamic.Interface
	authorizer authorizer.UnconditionalAuthorizer
}

var (
	_ admission.MutationInterface              = (*plugin)(nil)
	_ admission.ValidationInterface            = (*plugin)(nil)
	_ initializer.WantsExternalKubeClientSet   = (*plugin)(nil)
	_ initializer.WantsDynamicClient           = (*plugin)(nil)
	_ initializer.WantsUnconditionalAuthorizer = (*plugin)(nil)
)

// SetExternalKubeClientSet implements initializer.WantsExternalKubeClientSet.
func (p *plugin) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetDynamicClient implements initializer.WantsDynamicClient.
func (p *plugin) SetDynamicClient(client dynamic.Interface) { p.custom = client }

// SetUnconditionalAuthorizer implements initializer.WantsUnconditionalAuthorizer.
func (p *plugin) SetUnconditionalAuthorizer(authorizer authorizer.UnconditionalAuthorizer) {
	p.authorizer = authorizer
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *plugin) ValidateInitialization() error {
	if p.client == nil || p.custom == nil || p.authorizer == nil {
		return errors.New(Name + " lacks a client or an authorizer")
	}
	return nil
}

// Handles implements admission.Interface.
func (*plugin) Handles(operation admission.Operation) bool { return operation != admission.Connect }

// Admit implements admission.MutationInterface.
func (p *plugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == claims && a.GetObject() != nil {
		return p.admitClaim(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	switch a.GetResource().GroupResource() {
	case volumes:
		if a.GetOperation() == admission.Create && len(nodesOf(a.GetUserInfo())) > 0 {
			return p.checkVolume(ctx, a, o)
		}
	case capacities:
		if a.GetObject() != nil && a.GetNamespace() != systemNamespace {
			return p.checkCapacity(ctx, a, o)
		}
	case nodes:
		if a.GetObject() != nil && len(nodesOf(a.GetUserInfo())) > 0 {
			return p.checkTunnels(ctx, a)
		}
	case namespaces:
		if a.GetObject() != nil {
			return p.checkHosts(ctx, a)
		}
	case services:
		// Subresources except the status, such as proxy, have other objects.
		if subresource := a.GetSubresource(); a.GetObject() != nil && (subresource == "" || subresource == "status") {
			return p.checkService(ctx, a, o)
		}
	case leases:
		if a.GetUserInfo().GetName() == servicelb.User {
			return p.checkAddress(a, o)
		}
	case helmCharts, helmConfigs:
		return p.checkHelm(ctx, a)
	case networkPolicies:
		if a.GetObject() != nil && p.cfg.Unenforced {
			warning.AddWarning(ctx, "", "kedge does not enforce NetworkPolicies, because its settings disable network-policy: traffic that this policy "+
				"forbids is not blocked. To enforce them, remove disable-network-policy, and network-policy in disable, from the settings of all servers")
		}
	}
	return nil
}

// checkHelm keeps users of one namespace from writing HelmCharts there, because kedge
// installs and uninstalls charts with all rights. In the namespace kube-system only
// RBAC decides, as with k3s: users who may run pods there can get all rights anyway.
func (p *plugin) checkHelm(ctx context.Context, a admission.Attributes) error {
	if a.GetNamespace() == systemNamespace {
		return nil
	}
	// These controllers finish what others were allowed to begin: the deletion of a
	// namespace, or of a HelmChart in the foreground.
	switch a.GetUserInfo().GetName() {
	case "system:serviceaccount:kube-system:namespace-controller", "system:serviceaccount:kube-system:generic-garbage-collector":
		if a.GetOperation() != admission.Create {
			return nil
		}
	}
	allowed, err := p.mayEverything(ctx, a.GetUserInfo())
	if err != nil || allowed {
		return err
	}
	return admission.NewForbidden(a, errors.New("kedge installs charts with all rights. So outside of the namespace kube-system "+
		"only users who may do everything in the cluster (cluster-admin) may write HelmCharts and HelmChartConfigs"))
}

// mayEverything tells whether a user has all rights. Only a rule for all groups,
// resources, verbs and namespaces matches. The rules of a Role do not.
func (p *plugin) mayEverything(ctx context.Context, who user.Info) (bool, error) {
	return p.may(ctx, authorizer.AttributesRecord{User: who, Verb: "*", APIGroup: "*", APIVersion: "*", Resource: "*", ResourceRequest: true})
}

func (p *plugin) may(ctx context.Context, what authorizer.Attributes) (bool, error) {
	decision, _, err := p.authorizer.Authorize(ctx, what)
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up rights of user %s: %w", what.GetUser().GetName(), err)
	}
	return false, nil
}

// metadata returns the metadata of the object that is written, and those that it had. A
// new object had none.
func metadata(a admission.Attributes) (now, before metav1.Object, err error) {
	before = &metav1.ObjectMeta{}
	if old := a.GetOldObject(); old != nil {
		if before, err = meta.Accessor(old); err != nil {
			return nil, nil, fmt.Errorf("read the old object: %w", err)
		}
	}
	if now, err = meta.Accessor(a.GetObject()); err != nil {
		return nil, nil, fmt.Errorf("read the new object: %w", err)
	}
	return now, before, nil
}

// versioned converts an object to its type in a version of the API.
func versioned[T runtime.Object](object runtime.Object, o admission.ObjectInterfaces, version schema.GroupVersion) (T, error) {
	converted, err := o.GetObjectConvertor().ConvertToVersion(object, version)
	written, is := converted.(T)
	if err == nil && !is {
		err = fmt.Errorf("unexpected type %T", converted)
	}
	if err != nil {
		return written, fmt.Errorf("read the object: %w", err)
	}
	return written, nil
}

// nodesOf returns the names of the nodes that a user belongs to: one for the
// certificates of a node, and none for all other users.
func nodesOf(who user.Info) (names []string) {
	for _, group := range who.GetGroups() {
		if name, is := strings.CutPrefix(group, "kedge:node:"); is {
			names = append(names, name)
		}
	}
	return names
}
