// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/validatingadmissionpolicystatus.go.

package controllers

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

	"github.com/kedge-dev/kedge/internal/controlplane/lean/openapi"
)

// newPolicyStatusController makes the controller that checks the types in
// ValidatingAdmissionPolicies, as upstream's newValidatingAdmissionPolicyStatusController
// does. Upstream keeps the definitions of all types in memory, for checks that run only
// when a policy changes. This controller does not.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/validatingadmissionpolicystatus.go newValidatingAdmissionPolicyStatusController
func newPolicyStatusController(_ context.Context, controllerContext app.ControllerContext) (app.Controller, error) {
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
	workers := int(controllerContext.ComponentConfig.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs)
	return loop{name, func(ctx context.Context) { controller.Run(ctx, workers) }}, nil
}
