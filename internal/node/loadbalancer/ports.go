package loadbalancer

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// wanted returns the ports that Services want on the addresses of nodes.
func wanted(services []*corev1.Service) map[string]bool {
	ports := map[string]bool{}
	for _, service := range services {
		if !servicelb.IsOurs(service) || service.DeletionTimestamp != nil {
			continue
		}
		for i := range service.Spec.Ports {
			ports[servicelb.Port(&service.Spec.Ports[i])] = true
		}
	}
	return ports
}

// look looks at the ports that Services want. A port that was free stays so: its Service was
// here first. taken tells whether any port has another owner, who may leave it.
func (l *loadBalancer) look(ctx context.Context, ports map[string]bool, before servicelb.Ports) (found servicelb.Ports, taken bool) {
	found = servicelb.Ports{}
	for port := range ports {
		owner, known := before[port]
		if !known || owner != "" {
			owner = l.owner(ctx, port)
		}
		found[port] = owner
		taken = taken || owner != ""
	}
	return found, taken
}

// ownerOf returns a function that names who has a port on one of the addresses, or returns
// "" for a free port. kedge needs the reserved ports, whether anything listens there or not.
func ownerOf(addresses []netip.Addr, reserved []host.Port) func(ctx context.Context, port string) string {
	uses := map[string]string{}
	for _, port := range reserved {
		if _, number, err := net.SplitHostPort(port.Address); err == nil {
			uses[number+"/"+port.Network] = port.Use
		}
	}
	return func(ctx context.Context, port string) string {
		if use := uses[port]; use != "" {
			return "kedge (" + use + ")"
		}
		number, network, _ := strings.Cut(port, "/")
		if network != "tcp" && network != "udp" {
			return "" // nobody can tell for SCTP
		}
		for _, address := range addresses {
			if owner := host.TakenBy(ctx, host.Port{Network: network, Address: net.JoinHostPort(address.String(), number)}); owner != "" {
				return owner
			}
		}
		return ""
	}
}

// readPorts returns what a node has said about its ports.
func readPorts(node *corev1.Node) (ports servicelb.Ports) {
	_ = json.Unmarshal([]byte(node.Annotations[servicelb.PortsAnnotation]), &ports) // Ports of somebody else count as none.
	return ports
}

// report says in the annotation of the node what look has found.
func (l *loadBalancer) report(ctx context.Context, node *corev1.Node, ports servicelb.Ports) error {
	_, written := node.Annotations[servicelb.PortsAnnotation]
	if maps.Equal(ports, readPorts(node)) && written == (len(ports) > 0) {
		return nil
	}
	value := ""
	if len(ports) > 0 {
		text, err := json.Marshal(ports)
		if err != nil {
			return fmt.Errorf("encode ports: %w", err)
		}
		value = string(text)
	}
	if err := nodeobject.Annotate(ctx, l.api.CoreV1().Nodes(), l.cfg.NodeName, map[string]string{servicelb.PortsAnnotation: value}); err != nil {
		return fmt.Errorf("report ports of Services: %w", err)
	}
	return nil
}
