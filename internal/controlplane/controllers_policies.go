package controlplane

import (
	"context"
	"fmt"

	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/kedge-dev/kedge/internal/controlplane/openapi"
)

// policyStatusController checks the types in ValidatingAdmissionPolicies.
type policyStatusController struct {
	*validatingadmissionpolicystatus.Controller
	workers int
}

func (p policyStatusController) Name() string { return names.ValidatingAdmissionPolicyStatusController }

func (p policyStatusController) Run(ctx context.Context) { p.Controller.Run(ctx, p.workers) }

// newPolicyStatusController is upstream's newValidatingAdmissionPolicyStatusController
// (cmd/kube-controller-manager/app/validatingadmissionpolicystatus.go), which
// keeps the definitions of all types for a check that is due when a policy
// changes. It returns nil if the user has disabled it.
func newPolicyStatusController(api *APIServer, controllerContext app.ControllerContext, descriptor *app.ControllerDescriptor) (app.Controller, error) {
	if !controllerContext.IsControllerEnabled(descriptor) {
		return nil, nil
	}
	name := names.ValidatingAdmissionPolicyStatusController
	discovery, err := controllerContext.ClientBuilder.DiscoveryClient(name)
	if err != nil {
		return nil, fmt.Errorf("create discovery client of %s: %w", name, err)
	}
	client, err := controllerContext.NewClient(name)
	if err != nil {
		return nil, fmt.Errorf("create client of %s: %w", name, err)
	}
	checker := &validating.TypeChecker{
		SchemaResolver: openapi.NewResolver(&resolver.ClientDiscoveryResolver{Discovery: discovery},
			generatedopenapi.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme),
		RestMapper: controllerContext.RESTMapper,
	}
	controller, err := validatingadmissionpolicystatus.NewController(
		controllerContext.InformerFactory.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		client.AdmissionregistrationV1().ValidatingAdmissionPolicies(), checker)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", name, err)
	}
	return policyStatusController{controller, int(controllerContext.ComponentConfig.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs)}, nil
}
