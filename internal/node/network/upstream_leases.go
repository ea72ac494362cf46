// Follows github.com/flannel-io/flannel v0.28.10, pkg/subnet/kube/kube.go.
// Follows github.com/flannel-io/flannel v0.28.10, pkg/subnet/kube/annotations.go.

package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

// The annotations by which nodes with flannel find each other, as in flannel's
// pkg/subnet/kube/annotations.go.
const (
	//upstream:follows github.com/flannel-io/flannel/pkg/subnet/kube/annotations.go
	annotationPrefix  = "flannel.alpha.coreos.com/"
	annotationManaged = annotationPrefix + "kube-subnet-manager"
	annotationType    = annotationPrefix + "backend-type"
	annotationData    = annotationPrefix + "backend-data"
	annotationDataV6  = annotationPrefix + "backend-v6-data"
	annotationIP      = annotationPrefix + "public-ip"
	annotationIPv6    = annotationPrefix + "public-ipv6"
	// annotationSource is kedge's own. It has the addresses, separated by commas, of the interfaces
	// from which the node sends. They may differ from the public addresses.
	annotationSource = annotationPrefix + "source-ip"
)

// patchRetry is the wait before the node is patched again after an error, for example while the API
// server is away.
const patchRetry = time.Second

// leases announces this node to the others, and tells a flannel backend about them. It implements
// flannel's subnet.Manager, because flannel's own implementation in pkg/subnet/kube can be made only
// from a kubeconfig file.
//
//upstream:follows github.com/flannel-io/flannel/pkg/subnet/kube/kube.go kubeSubnetManager.AcquireLease kubeSubnetManager.nodeToLease kubeSubnetManager.GetStoredMacAddresses
type leases struct {
	client   kubernetes.Interface
	nodeName string
	nodeUID  types.UID
	// podCIDRs are this node's pod CIDRs.
	podCIDRs []string
	config   *subnet.Config
	// sources are the addresses from which this node sends.
	sources []netip.Addr
	nodes   listers.NodeLister
	// changed receives when any node may have changed.
	changed <-chan struct{}
	// stopped is closed when the component must end.
	stopped <-chan struct{}
	// again ends the backend, so that it is set up again.
	again func()
	log   *logrus.Entry
}

var _ subnet.Manager = (*leases)(nil)

// Name returns the manager's name in flannel's messages.
func (l *leases) Name() string { return "kedge" }

// GetNetworkConfig returns flannel's configuration.
func (l *leases) GetNetworkConfig(context.Context) (*subnet.Config, error) { return l.config, nil }

// AcquireLease writes this node's addresses into its annotations and returns its pod CIDRs. It
// retries until it succeeds or ctx ends.
func (l *leases) AcquireLease(ctx context.Context, attrs *lease.LeaseAttrs) (*lease.Lease, error) {
	annotations := map[string]string{
		annotationManaged: "true",
		annotationType:    attrs.BackendType,
		annotationSource:  joinAddresses(l.sources),
	}
	if l.config.EnableIPv4 {
		annotations[annotationIP] = attrs.PublicIP.String()
		annotations[annotationData] = backendData(attrs.BackendData)
	}
	if l.config.EnableIPv6 {
		annotations[annotationIPv6] = attrs.PublicIPv6.String()
		annotations[annotationDataV6] = backendData(attrs.BackendV6Data)
	}
	for {
		err := l.annotate(ctx, annotations)
		if err == nil {
			break
		}
		l.log.Warnf("Cannot announce this node to the other nodes, trying again: %v", err)
		select {
		case <-time.After(patchRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.stopped:
			return nil, context.Canceled
		}
	}
	own := &lease.Lease{Attrs: *attrs, EnableIPv4: l.config.EnableIPv4, EnableIPv6: l.config.EnableIPv6}
	if err := setSubnets(own, l.podCIDRs); err != nil {
		return nil, err
	}
	return own, nil
}

// joinAddresses returns the addresses separated by commas.
func joinAddresses(addresses []netip.Addr) string {
	texts := make([]string, len(addresses))
	for i, address := range addresses {
		texts[i] = address.String()
	}
	return strings.Join(texts, ",")
}

// annotate sets those annotations that this node lacks or that differ.
func (l *leases) annotate(ctx context.Context, annotations map[string]string) error {
	node, err := l.client.CoreV1().Nodes().Get(ctx, l.nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	missing := maps.Clone(annotations)
	maps.DeleteFunc(missing, func(key, value string) bool { return node.Annotations[key] == value })
	if len(missing) == 0 {
		return nil
	}
	if err := nodeobject.Annotate(ctx, l.client.CoreV1().Nodes(), l.nodeName, missing); err != nil {
		return fmt.Errorf("annotate node: %w", err)
	}
	return nil
}

// backendData returns a backend's data in the form that flannel writes.
func backendData(data json.RawMessage) string {
	if data == nil {
		return "null"
	}
	return string(data)
}

// WatchLeases sends changes of the nodes to receiver until ctx is cancelled, and then closes it.
func (l *leases) WatchLeases(ctx context.Context, receiver chan []lease.LeaseWatchResult) error {
	defer close(receiver)
	sent := map[string]lease.Lease{}
	for {
		nodes, err := l.nodes.List(labels.Everything())
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		if slices.ContainsFunc(nodes, l.isOwnAndChanged) {
			l.again()
			return nil
		}
		if events := l.events(sent, nodes); len(events) > 0 {
			select {
			case receiver <- []lease.LeaseWatchResult{{Events: events}}:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// isOwnAndChanged tells whether node is this node with other pod CIDRs, or with a new UID and so
// without its annotations.
func (l *leases) isOwnAndChanged(node *corev1.Node) bool {
	return node.Name == l.nodeName && (node.UID != l.nodeUID || !slices.Equal(node.Spec.PodCIDRs, l.podCIDRs))
}

// current returns the leases by the name of their node. Nodes without a lease are left out.
func (l *leases) current(nodes []*corev1.Node) map[string]lease.Lease {
	current := map[string]lease.Lease{}
	for _, node := range nodes {
		found, err := l.read(node)
		switch {
		case errors.Is(err, errNoLease):
		case err != nil:
			l.log.Warnf("Cannot reach the pods of node %s: %v", node.Name, err)
		default:
			current[node.Name] = found
		}
	}
	return current
}

// events returns the changes from sent to nodes, and updates sent.
func (l *leases) events(sent map[string]lease.Lease, nodes []*corev1.Node) []lease.Event {
	current := l.current(nodes)
	var events []lease.Event
	for name, old := range sent {
		if now, ok := current[name]; !ok || !reflect.DeepEqual(now, old) {
			events = append(events, lease.Event{Type: lease.EventRemoved, Lease: old})
			delete(sent, name)
		}
	}
	for name, now := range current {
		if _, ok := sent[name]; !ok {
			events = append(events, lease.Event{Type: lease.EventAdded, Lease: now})
			sent[name] = now
		}
	}
	return events
}

// errNoLease means that a node has not set up its network yet.
var errNoLease = errors.New("node has no lease yet")

// read returns the lease that a node's annotations describe.
func (l *leases) read(node *corev1.Node) (found lease.Lease, err error) {
	if node.Annotations[annotationManaged] != "true" || len(node.Spec.PodCIDRs) == 0 {
		return found, errNoLease
	}
	found.Attrs.BackendType = node.Annotations[annotationType]
	if l.config.EnableIPv4 {
		found.EnableIPv4 = true
		found.Attrs.BackendData = json.RawMessage(node.Annotations[annotationData])
		if found.Attrs.PublicIP, err = ip.ParseIP4(node.Annotations[annotationIP]); err != nil {
			return found, fmt.Errorf("read annotation %s: %w", annotationIP, err)
		}
	}
	if l.config.EnableIPv6 {
		found.EnableIPv6 = true
		found.Attrs.BackendV6Data = json.RawMessage(node.Annotations[annotationDataV6])
		if found.Attrs.PublicIPv6, err = ip.ParseIP6(node.Annotations[annotationIPv6]); err != nil {
			return found, fmt.Errorf("read annotation %s: %w", annotationIPv6, err)
		}
	}
	return found, setSubnets(&found, node.Spec.PodCIDRs)
}

// setSubnets sets the lease's pod CIDR of each family that the lease has.
func setSubnets(to *lease.Lease, podCIDRs []string) error {
	prefixes, err := parseCIDRs(podCIDRs)
	if err != nil {
		return fmt.Errorf("read pod CIDR: %w", err)
	}
	for _, prefix := range prefixes {
		if prefix.Addr().Is4() {
			to.Subnet = toIP4Net(prefix)
		} else {
			to.IPv6Subnet = toIP6Net(prefix)
		}
	}
	if to.EnableIPv4 && to.Subnet.Empty() || to.EnableIPv6 && to.IPv6Subnet.Empty() {
		return fmt.Errorf("pod CIDR %s lacks an address family of the cluster", strings.Join(podCIDRs, ","))
	}
	return nil
}

// GetStoredMacAddresses returns the hardware addresses that this node's vxlan devices had after the
// last start. If they stay the same, the other nodes need not learn new ones.
func (l *leases) GetStoredMacAddresses(ctx context.Context) (v4, v6 string) {
	node, err := l.client.CoreV1().Nodes().Get(ctx, l.nodeName, metav1.GetOptions{})
	if err != nil || node.Annotations[annotationType] != "vxlan" {
		return "", ""
	}
	address := func(key string) string {
		var data struct{ VtepMAC string }
		if err := json.Unmarshal([]byte(node.Annotations[key]), &data); err != nil {
			return ""
		}
		return data.VtepMAC
	}
	return address(annotationData), address(annotationDataV6)
}

func toIP4Net(prefix netip.Prefix) ip.IP4Net {
	return ip.IP4Net{IP: ip.FromIP(prefix.Addr().AsSlice()), PrefixLen: uint(prefix.Bits())}
}

func toIP6Net(prefix netip.Prefix) ip.IP6Net {
	return ip.IP6Net{IP: ip.FromIP6(prefix.Addr().AsSlice()), PrefixLen: uint(prefix.Bits())}
}

// The remaining methods of subnet.Manager are for flannel's own command and for other backends.

// errUnused is the error of methods that kedge's backends never call.
var errUnused = errors.New("not used by kedge")

// HandleSubnetFile is not used.
func (l *leases) HandleSubnetFile(string, *subnet.Config, bool, ip.IP4Net, ip.IP6Net, int) error {
	return errUnused
}

// RenewLease is not used: a lease lasts as long as its node.
func (l *leases) RenewLease(context.Context, *lease.Lease) error { return errUnused }

// WatchLease is not used.
func (l *leases) WatchLease(context.Context, ip.IP4Net, ip.IP6Net, chan []lease.LeaseWatchResult) error {
	return errUnused
}

// CompleteLease is not used.
func (l *leases) CompleteLease(context.Context, *lease.Lease, *sync.WaitGroup) error {
	return errUnused
}

// GetStoredPublicIP is not used.
func (l *leases) GetStoredPublicIP(context.Context) (v4, v6 string) { return "", "" }
