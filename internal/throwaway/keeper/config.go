package keeper

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
)

const (
	// nodeSettings is a file of a node with what the keeper adds to lists of the user's settings. It is read after
	// the user's file. A flag would replace a list of that file.
	nodeSettings = config.DefaultPath + ".d/zz-throwaway.yaml"
	// cgroupRoot is the argument of the kubelet that the keeper sets.
	cgroupRoot = "cgroup-root"
)

// owned are the settings that the keeper sets, or on whose defaults it relies. All nodes of a cluster have the same
// file of settings, so those that must differ are here, too.
var owned = map[string]string{
	"agent-token":       "agents of the cluster join with a secret of its own",
	"agent-token-file":  "agents of the cluster join with a secret of its own",
	"advertise-address": "each server of the cluster has an address of its own",
	"bind-address":      "the API answers at the addresses of the servers",
	"cluster-init":      "give --servers instead",
	"cluster-reset":     "delete the cluster, and create it again",
	"data-dir":          "the data of a node are where the cluster keeps them",
	"https-listen-port": "the API answers at port 6443 of the servers. To reach it at a port of this host, give --publish PORT:6443",
	"node-ip":           "each node of the cluster has an address of its own",
	"node-name":         "each node of the cluster has a name of its own",
	"private-registry":  "a node has no files of this host. To push images to the cluster, give --registry PORT",
	"server":            "the nodes of the cluster join its first server",
	"token":             "the nodes of the cluster join with a secret of its own",
	"token-file":        "the nodes of the cluster join with a secret of its own",
	"with-node-id":      "each node of the cluster has a name of its own",
	"write-kubeconfig":  "`kedge cluster kubeconfig NAME` prints the kubeconfig",
}

// CheckConfig returns an error for each setting of a cluster's configuration that only the keeper may set. sources are
// those of the configuration.
func CheckConfig(cfg *config.Config, sources config.Sources) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(sources)) {
		if why := owned[key]; why != "" {
			faults = append(faults, fmt.Errorf("%s: %s cannot be set for a cluster of this command: %s. Remove the setting", sources[key], key, why))
		}
	}
	if config.Argument(cfg.Node.KubeletArgs, cgroupRoot) != "" {
		faults = append(faults, fmt.Errorf("%s: kubelet-arg %s cannot be set for a cluster of this command: each node of the cluster has a cgroup of its own. Remove the argument", sources["kubelet-arg"], cgroupRoot))
	}
	return errors.Join(faults...)
}

// settings returns the text of nodeSettings. Nodes of an ordinary user have no loop devices, which local volumes need.
func settings(c clusters.Cluster, number int, rootless bool) string {
	text := fmt.Sprintf("kubelet-arg+: [%q]\n", cgroupRoot+"=/"+nodeCgroup(c, number))
	if rootless && number <= c.Servers {
		text += fmt.Sprintf("disable+: [%s]\n", config.LocalStorage)
	}
	return text
}
