package gatewaycontrol

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/sources"
)

// hostsName is the Secret with the hosts.Record. It has nothing that is secret. It is one because
// servers have a cache of Secrets anyway.
var hostsName = types.NamespacedName{Namespace: "kube-system", Name: "kedge-gateway-hosts"}

const (
	// reasonWanted is the reason of Events that tell the owner of a host who wants it, too.
	reasonWanted = "HostWanted"
	// reasonNoHost is the reason of Events that tell an administrator what is no host name.
	reasonNoHost = "NoHostName"
)

// owners decides which namespace has which host. wrong are the claims of administrators whose host is no
// host name.
func (c *Compiler) owners(claims []hosts.Claim, view *sources.View) (owners *hosts.Owners, wrong []hosts.Claim) {
	if c.cfg.ShareHosts {
		return nil, nil
	}
	given, wrong := hosts.Assigned(view.Namespaces)
	return hosts.Decide(append(claims, given...), recordOf(view.Gateways.Secret(hostsName.Namespace, hostsName.Name))), wrong
}

// recordOf reads the Secret hostsName, which may be nil.
func recordOf(secret *corev1.Secret) hosts.Record {
	if secret == nil {
		return nil
	}
	return hosts.ReadRecord(secret.Data)
}

// hostFaults returns what owners of hosts, routes that want them, and administrators are told. Statuses
// of Gateways and faults of Ingresses say the rest.
func (c *compiled) hostFaults() []fault {
	var faults []fault
	for _, claim := range c.wrongHosts {
		faults = append(faults, fault{claim.Object, reasonNoHost, fmt.Sprintf(
			"%q in the annotation %s is not a host name, and is ignored. Write names such as www.example.com or *.example.com, separated by commas",
			claim.Host, gateways.HostsAnnotation)})
	}
	for _, conflict := range c.owners.Conflicts() {
		switch conflict.Claim.Object.(type) {
		case *netv1.Ingress, *gwv1.Gateway, *gwv1.ListenerSet, *corev1.Namespace:
		default:
			faults = append(faults, fault{conflict.Claim.Object, string(gwv1.ListenerReasonHostnameConflict), conflict.Loser()})
		}
		if !conflict.IsAssigned() {
			faults = append(faults, fault{conflict.Owner.Object, reasonWanted, conflict.Winner()})
		}
	}
	return faults
}

// shadowed says which Ingresses have a host that a listener of a Gateway serves in another way. Of
// listeners with one host name, nodes use the settings of the first, which is the Gateway's.
func (c *compiled) shadowed() (faults []fault) {
	first := c.firstSecure()
	for object, isServed := range c.ingresses.Served {
		for i := range object.Spec.TLS {
			for _, host := range object.Spec.TLS[i].Hosts {
				if l := first[host]; isServed && l != nil && (l.Protocol != routing.HTTPS || l.ClientAuthorities != "") {
					faults = append(faults, fault{object, ingress.ReasonConflict, fmt.Sprintf(
						"The listener %s of a Gateway decides about HTTPS of the host %q, and has other settings than an Ingress. "+
							"Remove the host from spec.tls of the Ingress, or from the Gateway", l.Name, host)})
				}
			}
		}
	}
	return faults
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

// syncHosts records which namespace has which host.
func (t *term) syncHosts(ctx context.Context, newest *compiled, failed func(error)) {
	before := recordOf(newest.secret(hostsName.Namespace, hostsName.Name))
	changes := hosts.Changes(before, newest.owners.Record(before))
	if newest.owners == nil || len(changes) == 0 {
		return
	}
	failed(t.writeHosts(ctx, changes))
}

// writeHosts changes the Secret hostsName, and makes it if need be.
func (t *term) writeHosts(ctx context.Context, changes map[string][]byte) error {
	patch, err := json.Marshal(map[string]any{"data": changes})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	secrets := t.api.CoreV1().Secrets(hostsName.Namespace)
	_, err = secrets.Patch(ctx, hostsName.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		maps.DeleteFunc(changes, func(_ string, value []byte) bool { return value == nil })
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: hostsName.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": "kedge"}},
			Data:       changes,
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", hostsName, err)
	}
	return nil
}
