// Follows k8s.io/kubernetes v1.37.2, cmd/kubelet/app/server.go.

package kubelet

import (
	"fmt"
	"maps"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
)

// applyArguments applies the user's arguments, each as name=value, over kedge's settings. The files
// that config and config-dir name come first and the other arguments second, so that an argument
// wins over a file, as for upstream's kubelet. Unlike there, a file needs only the settings that
// differ from kedge's. The error lists every fault.
//
//upstream:follows k8s.io/kubernetes/cmd/kubelet/app/server.go NewKubeletCommand mergeKubeletConfigurations kubeletConfigFlagPrecedence
func applyArguments(server *options.KubeletServer, arguments []string) error {
	// The arguments name the files but apply after them. So they are parsed twice: once to find the
	// files, and again over the files' settings.
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
	// A feature-gates argument replaces the whole map, but should only add to it
	// (kubeletConfigFlagPrecedence in cmd/kubelet/app/server.go).
	for gate, on := range gates {
		if _, set := server.FeatureGates[gate]; !set {
			server.FeatureGates[gate] = on
		}
	}
	return validate(server)
}

// validate checks the configuration as upstream does before it starts a kubelet. It uses a copy of
// the feature gates, because a check must not change those of the process.
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
