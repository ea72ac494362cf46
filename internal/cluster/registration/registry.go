package registration

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// maxGone is how many UIDs of former registrations are remembered at most.
const maxGone = 10_000

// Registry is a server's view of all registrations. It is safe for concurrent use. Until
// the component that Follow returns is ready, its methods return ErrNotNow.
type Registry struct {
	log    *logrus.Entry
	client kubernetes.Interface
	former former

	mu sync.Mutex
	// known says that registrations has all of them.
	known bool
	// registrations are by the names of their nodes.
	registrations map[string]Registration
	// addresses are the addresses in the status of each Node.
	addresses map[string][]netip.Addr
	// gone are UIDs that the API server does not know.
	gone map[string]bool
	// settling has the timers of nodes whose registration is looked at later.
	settling map[string]*time.Timer
	ended    func(node string)
}

// New returns a registry that knows no registrations yet.
func New() *Registry {
	return &Registry{
		log:           logrus.WithField("component", "registrations"),
		former:        make(former, 1),
		registrations: map[string]Registration{},
		addresses:     map[string][]netip.Addr{},
		gone:          map[string]bool{},
		settling:      map[string]*time.Timer{},
		ended:         func(string) {},
	}
}

// OnEnd sets the function that is called with a node's name when certificates of that
// node may no longer be accepted. It must be called before anything runs.
func (r *Registry) OnEnd(do func(node string)) { r.ended = do }

// Follow returns the component that keeps the registry in step with the cluster. It also
// ends the registrations of nodes that were deleted or never appeared. Several servers
// may run it at the same time. The client's user needs the right to keep Secrets in
// kube-system, and to read and annotate Nodes. nodes are the informers of this process.
func (r *Registry) Follow(client kubernetes.Interface, nodes objectcache.Source) component.Component {
	return component.Func("registrations", func(ctx context.Context, ready func()) error {
		return r.follow(ctx, client, nodes, ready)
	})
}

func (r *Registry) follow(ctx context.Context, client kubernetes.Interface, nodes objectcache.Source, ready func()) error {
	factory, err := nodes(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	r.client = client
	// The Nodes are known before the registrations, or each registration would seem to have none.
	known, err := factory.Core().V1().Nodes().Informer().AddEventHandler(objectcache.Each(
		func(node *corev1.Node) { r.nodeIs(ctx, node) },
		func(name string) { r.nodeGone(ctx, name) },
	))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", known.HasSyncedChecker()) {
		return nil
	}
	secrets := registrationsOf(client)
	if allowedSoon(r.log).Until(ctx, func(ctx context.Context) error {
		if _, err := secrets.ListWithContext(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) {
			return fmt.Errorf("list registrations: %w", err)
		}
		return nil // the informer says what else is wrong
	}) != nil {
		return nil
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(secrets, client),
		ObjectType:    &corev1.Secret{}, Transform: withoutPassword, Handler: objectcache.Each(func(secret *corev1.Secret) { r.secretIs(ctx, secret) }, r.secretGone),
	})
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following.Go(func() { controller.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", controller.HasSyncedChecker()) {
		return nil
	}
	r.mu.Lock()
	r.known = true
	r.mu.Unlock()
	ready()
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, timer := range r.settling {
		timer.Stop()
	}
	return nil
}

// registrationsOf lists and watches the Secrets that are registrations.
func registrationsOf(client kubernetes.Interface) *cache.ListWatch {
	secrets := client.CoreV1().Secrets(namespace)
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector = fields.OneTermEqualSelector("type", SecretType).String()
		return options
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return secrets.List(ctx, selected(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return secrets.Watch(ctx, selected(options))
		},
	}
}

// withoutPassword is a cache.TransformFunc that drops the hash, which is read when a node
// joins. It changes a copy: client-go's fake client shares the objects that it stores with
// the watches that begin after their creation.
func withoutPassword(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	trimmed := *secret
	trimmed.Data, trimmed.ManagedFields = nil, nil
	return &trimmed, nil
}

// secretIs takes in a registration that is new or has changed.
func (r *Registry) secretIs(ctx context.Context, secret *corev1.Secret) {
	if !strings.HasSuffix(secret.Name, suffix) {
		return
	}
	registration := of(secret)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registrations[registration.Node] = registration
	_, exists := r.addresses[registration.Node]
	switch {
	case exists && !registration.Registered, !exists && registration.Registered, exists && !registration.Revoked.IsZero():
		r.settleLocked(ctx, registration.Node, 0)
	case !registration.Registered:
		r.settleLocked(ctx, registration.Node, Patience-time.Since(registration.Joined))
	}
	go r.ended(registration.Node)
}

func (r *Registry) secretGone(key string) {
	node := strings.TrimSuffix(strings.TrimPrefix(key, namespace+"/"), suffix)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.registrations, node)
	go r.ended(node)
}

// nodeIs takes in a Node that is new or has changed, with its addresses.
func (r *Registry) nodeIs(ctx context.Context, node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses[node.Name] = nodeobject.Addresses(node, corev1.NodeInternalIP)
	if registration, ok := r.registrations[node.Name]; ok && (!registration.Registered || node.Annotations[NodeAnnotation] != registration.mark()) {
		r.settleLocked(ctx, node.Name, 0)
	}
}

func (r *Registry) nodeGone(ctx context.Context, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.addresses, name)
	r.settleLocked(ctx, name, 0)
}

// mark returns the value that NodeAnnotation should have.
func (r *Registration) mark() string {
	switch {
	case !r.Revoked.IsZero():
		return Revoked
	case r.CertificatesEnd.IsZero():
		return ""
	}
	return r.UID
}

// settleLocked compares a registration with its Node after a while. After a failure it does so again, and
// waits twice as long each time.
func (r *Registry) settleLocked(ctx context.Context, node string, after time.Duration) {
	if timer := r.settling[node]; timer != nil {
		timer.Stop()
	}
	r.settling[node] = time.AfterFunc(max(after, 0), func() {
		err := settle(ctx, r.client, node)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.log.WithError(err).Debugf("cannot look after the registration of node %s", node)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settleLocked(ctx, node, min(2*max(after, loop.FirstWait), loop.LastWait))
	})
}

// settle compares a registration with its Node, as the API has both now. It records that
// the Node has been seen, or removes the registration if it is over. It reads the
// registration first. Registrations are made for nodes that do not exist yet, so a Node
// that is found afterwards is newer than the registration.
func settle(ctx context.Context, client kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name+suffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read registration: %w", err)
	}
	registration := of(secret)
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && (registration.Registered || registration.late(time.Now())):
		return remove(ctx, client, registration)
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for node: %w", err)
	}
	var faults []error
	if !registration.Registered {
		faults = append(faults, annotate(ctx, client, registration, map[string]string{registeredAnnotation: "true"}))
	}
	if mark := registration.mark(); node.Annotations[NodeAnnotation] != mark {
		patch := []byte(fmt.Sprintf(`{"metadata": {"uid": %q, "annotations": {%q: %q}}}`, node.UID, NodeAnnotation, mark))
		if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			faults = append(faults, fmt.Errorf("tell other nodes: %w", err))
		}
	}
	return errors.Join(faults...)
}

// Check tells whether a node's certificates that carry uid are accepted; uid is empty for
// those of an older kedge. The error is ErrRefused or ErrNotNow. genuine verifies the
// certificate. It is called only before a question to the API server, so that strangers
// cannot cause such questions.
func (r *Registry) Check(ctx context.Context, node, uid string, genuine func() error) error {
	r.mu.Lock()
	known, gone := r.known, r.gone[uid]
	registration, found := r.registrations[node]
	_, exists := r.addresses[node]
	r.mu.Unlock()
	switch {
	case !known:
		return ErrNotNow
	case found && registration.accepts(uid) && (exists || !registration.late(time.Now())):
		return nil
	case gone, uid == "", found && registration.UID == uid, genuine() != nil:
		return ErrRefused
	}
	// Another server may have admitted the node a moment ago.
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	secret, err := r.client.CoreV1().Secrets(namespace).Get(ctx, node+suffix, metav1.GetOptions{})
	switch {
	case err == nil:
		if registration = of(secret); registration.accepts(uid) && !registration.late(time.Now()) {
			return nil
		}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrNotNow, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gone) >= maxGone {
		clear(r.gone)
	}
	r.gone[uid] = true
	return ErrRefused
}

// Owner returns the node whose registration has an address, if there is exactly one.
func (r *Registry) Owner(ip netip.Addr) (node string, found bool) {
	owners, err := r.owners(ip)
	if err != nil || len(owners) != 1 {
		return "", false
	}
	return owners[0], true
}

// owners returns the nodes that have an address. If a node has certificates of an older
// kedge, or has not joined since its cluster was adopted from k3s, the addresses in its
// Node's status count.
func (r *Registry) owners(ip netip.Addr) (owners []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return nil, ErrNotNow
	}
	now := time.Now()
	for node, registration := range r.registrations {
		reported, exists := r.addresses[node]
		if !registration.Revoked.IsZero() || !exists && registration.late(now) {
			continue
		}
		addresses := registration.Addresses
		if len(addresses) == 0 {
			addresses = reported
		}
		if slices.Contains(addresses, ip) {
			owners = append(owners, node)
		}
	}
	for node, reported := range r.addresses {
		if _, registered := r.registrations[node]; !registered && slices.Contains(reported, ip) {
			owners = append(owners, node)
		}
	}
	return owners, nil
}
