// Follows k8s.io/kubernetes v1.36.3, cmd/kube-controller-manager/app/options/options.go.

package controllers

import (
	"fmt"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
)

// complete makes upstream's configuration of the options. Upstream's own Config
// would ask for a kubeconfig and, in a pod, find the outer cluster's
// (cmd/kube-controller-manager/app/options/options.go).
func (m *Manager) complete() (*managerconfig.CompletedConfig, error) {
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := m.options.Validate(known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("check arguments: %w", err)
	}
	// Serving is set up by healthport.Serve, which knows whom to ask who may call.
	o, noServing := *m.options, *m.options.SecureServing
	noServing.BindPort = 0
	o.SecureServing = &noServing
	built := &managerconfig.Config{}
	if err := o.ApplyTo(built, known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("apply arguments: %w", err)
	}
	return built.Complete(), nil
}
