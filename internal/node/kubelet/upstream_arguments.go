// Follows k8s.io/kubernetes v1.36.3, cmd/kubelet/app/server.go.

package kubelet

import (
	"fmt"
	"maps"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
)

// applyArguments applies the user's arguments, each as name=value, over what
// kedge has set: first the files that config and config-dir name, then the
// other arguments, so that, as for upstream's kubelet, an argument wins over a
// file. Other than for upstream's kubelet a file need only hold what differs.
// It reports every fault.
//
//upstream:follows k8s.io/kubernetes/cmd/kubelet/app/server.go NewKubeletCommand mergeKubeletConfigurations kubeletConfigFlagPrecedence
func applyArguments(server *options.KubeletServer, arguments []string) error {
	// The files are named by the arguments and come before them: once to find
	// the names, and once over the files.
	trial := &options.KubeletServer{KubeletFlags: server.KubeletFlags, KubeletConfiguration: *server.KubeletConfiguration.DeepCopy()}
	trial.NodeLabels = maps.Clone(server.NodeLabels)
	if err := parseArguments(trial, arguments); err != nil {
		return err
	}
	files, err := configurationFiles(trial.KubeletConfigFile, trial.KubeletDropinConfigDirectory)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		if err := applyFiles(server, files); err != nil {
			return err
		}
	}
	gates := server.FeatureGates
	if err := parseArguments(server, arguments); err != nil {
		return err
	}
	// A feature-gates argument replaces the map, but should only add to it:
	// kubeletConfigFlagPrecedence in cmd/kubelet/app/server.go.
	for gate, on := range gates {
		if _, set := server.FeatureGates[gate]; !set {
			server.FeatureGates[gate] = on
		}
	}
	return validate(server)
}

// validate is what upstream does before it starts a kubelet, but with a copy of
// the feature gates: those of the process are not for a check to change.
//
//upstream:follows k8s.io/kubernetes/cmd/kubelet/app/server.go NewKubeletCommand
func validate(server *options.KubeletServer) error {
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(server.FeatureGates); err != nil {
		return fmt.Errorf("%s feature-gates: %w", flagName, err)
	}
	if err := validation.ValidateKubeletConfiguration(&server.KubeletConfiguration, gates); err != nil {
		return fmt.Errorf("check kubelet configuration, see %s: %w", flagName, err)
	}
	if err := options.ValidateKubeletFlags(&server.KubeletFlags); err != nil {
		return fmt.Errorf("check kubelet arguments, see %s: %w", flagName, err)
	}
	return nil
}
