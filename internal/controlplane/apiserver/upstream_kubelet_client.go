// Follows k8s.io/kubernetes v1.37.2, pkg/kubelet/client/kubelet_client.go.

package apiserver

import (
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	nodeutil "k8s.io/kubernetes/pkg/util/node"
)

// kubeletAddress returns a function that returns HOST:PORT of a node's kubelet, as the
// API server dials it.
//
//upstream:follows k8s.io/kubernetes/pkg/kubelet/client/kubelet_client.go NodeConnectionInfoGetter.GetConnectionInfo
func kubeletAddress(config kubeletclient.KubeletClientConfig) func(*corev1.Node) (string, error) {
	var types []corev1.NodeAddressType
	for _, t := range config.PreferredAddressTypes {
		types = append(types, corev1.NodeAddressType(t))
	}
	return func(node *corev1.Node) (string, error) {
		host, err := nodeutil.GetPreferredNodeAddress(node, types)
		if err != nil {
			return "", fmt.Errorf("choose address of node %s: %w", node.Name, err)
		}
		port := int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
		if port <= 0 {
			port = int(config.Port)
		}
		return net.JoinHostPort(host, strconv.Itoa(port)), nil
	}
}
