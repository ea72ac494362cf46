package gatewaycontrol

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/statuses"
)

// These are the reasons of Events.
const (
	// reasonWanted tells the owner of a host who wants it, too.
	reasonWanted = "HostWanted"
	// reasonNoHost tells an administrator what is no host name.
	reasonNoHost = "NoHostName"
	// reasonTaken is about a front whose name is taken.
	reasonTaken = "ServiceExists"
)

// allFaults returns what users have to mend, for Events.
func (c *compiled) allFaults() []faults.Fault {
	return slices.Concat(statuses.Faults(c.gateways), c.ingresses.Faults, c.faults, c.conflicts(), c.shadowed())
}

// noHosts tells administrators that the host of a claim is no host name.
func (c *compiled) noHosts(claims []hosts.Claim) {
	for _, claim := range claims {
		c.faults = append(c.faults, faults.Fault{Object: claim.Object, Reason: reasonNoHost, Message: fmt.Sprintf(
			"%q in the annotation %s is not a host name, and is ignored. Write names such as www.example.com or *.example.com, separated by commas",
			claim.Host, gateways.HostsAnnotation)})
	}
}

// yield says in the statuses of Gateways, and by faults, that the names of fronts are taken.
func (c *compiled) yield(taken []front.Front) {
	for _, f := range taken {
		message, served := f.TakenMessage(), f.Gateways()
		for object, status := range c.gateways.Gateways {
			if served[object.Namespace+"/"+object.Name] {
				statuses.WithoutAddresses(object, status, message)
				c.faults = append(c.faults, faults.Fault{Object: object, Reason: reasonTaken, Message: message})
			}
		}
		if f.Gateway == nil {
			for object := range c.ingresses.Served {
				c.faults = append(c.faults, faults.Fault{Object: object, Reason: reasonTaken, Message: message})
			}
		}
	}
}

// conflicts returns what owners of hosts and routes that want them are told. Statuses of Gateways
// and faults of Ingresses say the rest.
func (c *compiled) conflicts() (all []faults.Fault) {
	for _, conflict := range c.owners.Conflicts() {
		switch conflict.Claim.Object.(type) {
		case *netv1.Ingress, *gwv1.Gateway, *gwv1.ListenerSet, *corev1.Namespace:
		default:
			all = append(all, faults.Fault{Object: conflict.Claim.Object, Reason: string(gwv1.ListenerReasonHostnameConflict), Message: conflict.Loser()})
		}
		if !conflict.IsAssigned() {
			all = append(all, faults.Fault{Object: conflict.Owner.Object, Reason: reasonWanted, Message: conflict.Winner()})
		}
	}
	return all
}

// shadowed says which Ingresses have a host that a listener of a Gateway serves in another way. Of
// listeners with one host name, nodes use the settings of the first, which is the Gateway's.
func (c *compiled) shadowed() (all []faults.Fault) {
	first := c.firstSecure()
	for object, isServed := range c.ingresses.Served {
		for i := range object.Spec.TLS {
			for _, host := range object.Spec.TLS[i].Hosts {
				if l := first[host]; isServed && l != nil && (l.Protocol != routing.HTTPS || l.ClientAuthorities != "") {
					all = append(all, faults.Fault{Object: object, Reason: ingress.ReasonConflict, Message: fmt.Sprintf(
						"The listener %s of a Gateway decides about HTTPS of the host %q, and has other settings than an Ingress. "+
							"Remove the host from spec.tls of the Ingress, or from the Gateway", l.Name, host)})
				}
			}
		}
	}
	return all
}

// firstSecure returns the first listener of each host name at port 443 of the shared front.
func (c *compiled) firstSecure() map[string]*front.Listener {
	first := map[string]*front.Listener{}
	for i := range c.fronts {
		for _, port := range c.fronts[i].Ports {
			if c.fronts[i].Name != front.Shared || port.Number != front.SecurePort || port.Transport != routing.TCP {
				continue
			}
			for j := range port.Listeners {
				if l := &port.Listeners[j]; first[l.Hostname] == nil {
					first[l.Hostname] = l
				}
			}
		}
	}
	return first
}
