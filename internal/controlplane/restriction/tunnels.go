package restriction

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// tunnelAnnotations are flannel's annotations of a node, for each address family: the
// node's end of the tunnels, and the address of that end (flannel's
// pkg/subnet/kube/annotations.go).
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/subnet/kube/annotations.go newAnnotations
var tunnelAnnotations = []struct{ data, address string }{
	{"flannel.alpha.coreos.com/backend-data", "flannel.alpha.coreos.com/public-ip"},
	{"flannel.alpha.coreos.com/backend-v6-data", "flannel.alpha.coreos.com/public-ipv6"},
}

// typeAnnotation is flannel's annotation with the backend of a node. In the mesh, a public key stands for a node, at
// whichever address.
const (
	typeAnnotation = "flannel.alpha.coreos.com/backend-type"
	meshBackend    = "mesh"
)

// checkTunnels keeps a node from claiming another node's end of the tunnels. A
// hardware address (VXLAN) or a public key (WireGuard) leads to one host, so the
// other node's packets would go to this one. A host that has joined again under
// another name may keep its end, except in the mesh, where each start makes new keys.
func (p *plugin) checkTunnels(ctx context.Context, a admission.Attributes) error {
	node, was, err := metadata(a)
	if err != nil {
		return err
	}
	said, before := node.GetAnnotations(), was.GetAnnotations()
	for _, family := range tunnelAnnotations {
		if said[family.data] == before[family.data] && said[family.address] == before[family.address] && said[typeAnnotation] == before[typeAnnotation] {
			continue
		}
		end := readTunnelEnd(said[family.data])
		others, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		for _, other := range others.Items {
			if other.Name != node.GetName() && end.is(readTunnelEnd(other.Annotations[family.data])) &&
				(other.Annotations[family.address] != said[family.address] || said[typeAnnotation] == meshBackend) {
				return admission.NewForbidden(a, fmt.Errorf("node %s already has this tunnel address, at %s. If that node is gone, run `kubectl delete node %[1]s`",
					other.Name, other.Annotations[family.address]))
			}
		}
	}
	return nil
}

// tunnelEnd is how other nodes identify an end of their tunnels.
type tunnelEnd struct{ mac, key string }

// readTunnelEnd reads the annotation in the same way as the other nodes do: peersOf in
// internal/node/network/upstream_vxlan.go, and flannel's
// pkg/backend/wireguard/wireguard_network.go. Parts that are missing or cannot be read
// are empty.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/wireguard_network.go network.handleSubnetEvents
func readTunnelEnd(data string) (end tunnelEnd) {
	// The fields are read separately, because a fault in one must not hide the
	// other.
	var vxlan struct{ VtepMAC string }
	if json.Unmarshal([]byte(data), &vxlan) == nil {
		if mac, err := net.ParseMAC(vxlan.VtepMAC); err == nil {
			end.mac = string(mac)
		}
	}
	var wireguard struct{ PublicKey string }
	if json.Unmarshal([]byte(data), &wireguard) == nil {
		if key, err := base64.StdEncoding.DecodeString(wireguard.PublicKey); err == nil {
			end.key = string(key)
		}
	}
	return end
}

// is tells whether two ends are the same.
func (e tunnelEnd) is(other tunnelEnd) bool {
	return e.mac != "" && e.mac == other.mac || e.key != "" && e.key == other.key
}
