// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/options/options.go.

package controllers

import (
	"fmt"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
)

// complete makes upstream's configuration of the options. Upstream's Config needs a
// kubeconfig. In a pod it finds the outer cluster's.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/options/options.go KubeControllerManagerOptions.Config
func (m *Manager) complete() (*managerconfig.CompletedConfig, error) {
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := m.options.Validate(known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("check arguments: %w", err)
	}
	// Manager.serve opens the port: it asks the API server in this process who may call.
	o, noServing := *m.options, *m.options.SecureServing
	noServing.BindPort = 0
	o.SecureServing = &noServing
	built := &managerconfig.Config{}
	if err := o.ApplyTo(built, known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("apply arguments: %w", err)
	}
	return built.Complete(), nil
}
