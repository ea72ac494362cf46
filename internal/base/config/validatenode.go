package config

import (
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// snapshotters are the values of snapshotter; empty chooses by the kernel.
var snapshotters = []string{"", "overlayfs", "native"}

// taintEffects are Kubernetes's own.
var taintEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// hostnameLabel is the label of a node that the kubelet gives the node's name.
const hostnameLabel = "kubernetes.io/hostname"

func (v *validator) node(n *Node, families int) {
	if n.NodeName != "" {
		for _, detail := range validation.IsDNS1123Subdomain(n.NodeName) {
			v.fault("node-name", "%q: %s", n.NodeName, detail)
		}
	}
	v.perFamily("node-ip", n.NodeIP, families)
	v.perFamily("node-external-ip", n.NodeExternalIP, families)
	for _, text := range n.NodeExternalIP {
		if a, ok := v.address("node-external-ip", text); ok && !a.IsGlobalUnicast() {
			v.fault("node-external-ip", "other nodes cannot reach %s: use an address that they can reach", a)
		}
	}
	for _, label := range n.NodeLabels {
		name, value, _ := strings.Cut(label, "=")
		if len(validation.IsQualifiedName(name)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			v.fault("node-label", "invalid label %q: use NAME=VALUE, such as zone=a", label)
		}
		if name == hostnameLabel {
			v.fault("node-label", "the label %q cannot be set: it is the name of the node. Set node-name", label)
		}
	}
	for _, taint := range n.NodeTaints {
		if !isTaint(taint) {
			v.fault("node-taint", "invalid taint %q: use NAME=VALUE:EFFECT, where EFFECT is one of %s", taint, strings.Join(taintEffects, ", "))
		}
	}
	for _, text := range n.NodeIP {
		if a, ok := v.address("node-ip", text); ok && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast()) {
			v.fault("node-ip", "%s cannot be a node's address: use an address of this host that other nodes can reach", a)
		}
	}
	v.absoluteIfSet("resolv-conf", n.ResolvConf)
	v.absoluteIfSet("flannel-conf", n.FlannelConf)
	v.absoluteIfSet("default-local-storage-path", n.DefaultLocalStoragePath)
	if socket := n.RuntimeSocket(); socket != "" && !filepath.IsAbs(socket) {
		v.fault("container-runtime-endpoint", "%q is not the path of a socket: use one such as unix:///run/crio/crio.sock", n.ContainerRuntimeEndpoint)
	}
	v.absolute("private-registry", n.PrivateRegistry)
	v.oneOf("snapshotter", n.Snapshotter, snapshotters)
	if (n.ImageCredentialProviderBinDir == "") != (n.ImageCredentialProviderConfig == "") {
		v.fault("image-credential-provider-config", "set both image-credential-provider-bin-dir and image-credential-provider-config, or neither")
	}
	v.absoluteIfSet("image-credential-provider-bin-dir", n.ImageCredentialProviderBinDir)
	v.absoluteIfSet("image-credential-provider-config", n.ImageCredentialProviderConfig)
	if n.DefaultRuntime == "" {
		v.fault("default-runtime", "is empty: use the name of a runtime of containerd, such as runc")
	}
	v.arguments("kubelet-arg", n.KubeletArgs)
	v.arguments("kube-proxy-arg", n.KubeProxyArgs)
}

// perFamily checks that a node has at most one address of each family.
func (v *validator) perFamily(key string, addresses []string, families int) {
	if len(addresses) > max(families, 1) {
		v.fault(key, "has %d addresses, but the cluster has %d address family: use one address of each family", len(addresses), families)
	}
}

func isTaint(text string) bool {
	rest, effect, ok := strings.Cut(text, ":")
	name, value, _ := strings.Cut(rest, "=")
	return ok && slices.Contains(taintEffects, effect) &&
		len(validation.IsQualifiedName(name)) == 0 && len(validation.IsValidLabelValue(value)) == 0
}
