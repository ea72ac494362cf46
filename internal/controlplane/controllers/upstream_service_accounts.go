// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/service_accounts.go.

package controllers

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	tokenscontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// newTokenController makes the controller that fills Secrets of the type
// service-account-token, as upstream's newServiceAccountTokenController does.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/service_accounts.go newServiceAccountTokenController
func newTokenController(ctx context.Context, api API, controllerContext app.ControllerContext) (app.Controller, error) {
	config := controllerContext.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(config.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read service-account key: %w", err)
	}
	ca, err := os.ReadFile(config.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("read root-ca-file: %w", err)
	}
	client, err := kubernetes.NewForConfig(api.ClientUntil(ctx, managerUser))
	if err != nil {
		return nil, fmt.Errorf("create client of token controller: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("build token generator: %w", err)
	}
	core := controllerContext.InformerFactory.Core().V1()
	controller, err := tokenscontroller.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		tokenscontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: ca})
	if err != nil {
		return nil, fmt.Errorf("build token controller: %w", err)
	}
	return loop{names.ServiceAccountTokenController, func(ctx context.Context) {
		controller.Run(ctx, int(config.ConcurrentSATokenSyncs))
	}}, nil
}
