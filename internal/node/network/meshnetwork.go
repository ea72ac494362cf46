package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	meshwire "github.com/kedge-dev/kedge/internal/cluster/mesh"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/node/mesh"
)

// meshRetry is the wait before nodes that could not be added are tried again.
const meshRetry = 10 * time.Second

// meshNetwork is the network of the flannel-backend mesh. It tells a Mesh which nodes there are.
type meshNetwork struct {
	mesh   *mesh.Mesh
	leases *leases
	own    *lease.Lease
}

var _ backend.Network = (*meshNetwork)(nil)

// startMesh announces this node's keys, and makes the interface of the mesh.
func (n *Network) startMesh(ctx context.Context, l *leases, podCIDRs []netip.Prefix, iface *backend.ExternalInterface) (backend.Network, error) {
	var own []netip.Addr
	for _, cidr := range podCIDRs {
		own = append(own, cidr.Addr())
	}
	if err := n.cfg.Mesh.Start(own); err != nil {
		return nil, err
	}
	keys, err := json.Marshal(n.cfg.Mesh.Keys())
	if err != nil {
		return nil, fmt.Errorf("encode keys: %w", err)
	}
	attributes := &lease.LeaseAttrs{BackendType: meshBackend}
	if l.config.EnableIPv4 {
		attributes.PublicIP, attributes.BackendData = ip.FromIP(iface.ExtAddr), keys
	}
	if l.config.EnableIPv6 {
		attributes.PublicIPv6, attributes.BackendV6Data = ip.FromIP6(iface.ExtV6Addr), keys
	}
	acquired, err := l.AcquireLease(ctx, attributes)
	if err != nil {
		n.cfg.Mesh.Stop()
		return nil, fmt.Errorf("announce this node: %w", err)
	}
	return &meshNetwork{mesh: n.cfg.Mesh, leases: l, own: acquired}, nil
}

// Lease implements backend.Network.
func (m *meshNetwork) Lease() *lease.Lease { return m.own }

// MTU implements backend.Network.
func (m *meshNetwork) MTU() int { return mesh.MTU }

// Run implements backend.Network. It follows the nodes until ctx ends.
func (m *meshNetwork) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer m.mesh.Stop()
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { m.mesh.Run(ctx) })
	faults := loop.Faults{Log: m.leases.log}
	for {
		nodes, err := m.leases.nodes.List(labels.Everything())
		if err == nil && slices.ContainsFunc(nodes, m.leases.isOwnAndChanged) {
			m.leases.again()
			return
		}
		if err == nil {
			peers, unreadable := m.peers(nodes)
			err = errors.Join(m.mesh.SetPeers(peers), unreadable)
		}
		var retry <-chan time.Time
		if err != nil {
			err = fmt.Errorf("some pods of other nodes are out of reach: %w", err)
			retry = time.After(meshRetry)
		}
		faults.Tell(err)
		select {
		case <-m.leases.changed:
		case <-retry:
		case <-m.mesh.Removed():
			m.leases.again()
			return
		case <-ctx.Done():
			return
		}
	}
}

// peers returns the other nodes that are in the mesh, and why some are left out.
func (m *meshNetwork) peers(nodes []*corev1.Node) (peers []mesh.Peer, unreadable error) {
	var faults []error
	for _, node := range nodes {
		if node.Name == m.leases.nodeName || node.Annotations[annotationType] != meshBackend || node.Annotations[registration.NodeAnnotation] == registration.Revoked {
			continue
		}
		peer, err := m.peer(node)
		if err != nil {
			faults = append(faults, fmt.Errorf("node %s: %w", node.Name, err))
			continue
		}
		peers = append(peers, peer)
	}
	return peers, errors.Join(faults...)
}

func (m *meshNetwork) peer(node *corev1.Node) (peer mesh.Peer, err error) {
	peer.Name = node.Name
	data := node.Annotations[annotationData]
	if !m.leases.config.EnableIPv4 {
		data = node.Annotations[annotationDataV6]
	}
	if err := json.Unmarshal([]byte(data), &peer.Keys); err != nil {
		return peer, fmt.Errorf("read its keys: %w", err)
	}
	if peer.PodCIDRs, err = parseCIDRs(node.Spec.PodCIDRs); err != nil {
		return peer, fmt.Errorf("read pod CIDR: %w", err)
	}
	for _, address := range nodeobject.Addresses(node, corev1.NodeExternalIP, corev1.NodeInternalIP) {
		peer.Addresses = append(peer.Addresses, netip.AddrPortFrom(address, meshwire.DefaultPort))
	}
	return peer, nil
}
