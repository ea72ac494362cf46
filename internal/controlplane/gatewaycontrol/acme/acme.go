// Package acme gets certificates for Ingresses and Gateways from an authority that speaks ACME
// (RFC 8555), such as Let's Encrypt, and renews them. An object asks for it by the annotation
// gateway.kedge.dev/acme. Package gatewaycontrol runs the Manager on the elected server, and merges
// the challenges into what the nodes serve on every server.
//
// The order of the files is the order of the work: which certificates objects ask for
// (wanted.go), when each is due (schedule.go), the account at the authority (account.go), the
// way there (directory.go), an order (order.go), the answers to its challenges
// (challenges.go), and the Secrets (secrets.go).
//
// # Challenges
//
// The authority asks the host that it certifies: for a file over HTTP at port 80 (HTTP-01), or
// for a certificate by TLS at port 443 (TLS-ALPN-01). It may arrive at any node. The nodes get
// their state from several servers, so the answers stand in the Secret ChallengesName, which
// all servers read. An attempt uses one of the two kinds, and the next attempt the other one.
// The first one is HTTP-01, but TLS-ALPN-01 for a Gateway that has no HTTP at port 80.
//
// # Who may have which certificate
//
// A tenant may have a certificate for each host name that leads here, because the gateway
// answers the challenge. So only the namespace that has a host on the shared front, or that its
// owner lets in, gets certificates for it (package hosts).
// The certificate goes into a Secret of the namespace of the object that asks. Secrets that
// kedge did not make are never changed. The annotation gateway.kedge.dev/acme-server names the
// authority, and so makes this server connect somewhere. directory.go says where it does not.
//
// The library is golang.org/x/crypto/acme. It keeps nothing for the whole process. acmez has a
// cache of directories with one lock, which an authority that somebody names could hold, and it
// adds twice as much to the executable (1.2 MB; certmagic 3.3 MB).
package acme

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// These are the annotations of Ingresses and Gateways.
const (
	// AnnotationACME asks for certificates. Its value is the e-mail address of the account, or
	// "true" for an account without one.
	AnnotationACME = "gateway.kedge.dev/acme"
	// AnnotationServer is the URL of the directory of another authority than the cluster's.
	AnnotationServer = "gateway.kedge.dev/acme-server"
)

// LetsEncrypt is the directory of Let's Encrypt, which is used if nothing else is set.
const LetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// These are the reasons of Events.
const (
	reasonIssued  = "CertificateIssued"
	reasonFailed  = "CertificateFailed"
	reasonRefused = "CertificateRefused"
	reasonForeign = "CertificateNotManaged"
)

// orderTime is how long an attempt may take, and settleTime is how long it waits until the
// challenges have reached the nodes. A node may have to open a port first.
const (
	orderTime  = 5 * time.Minute
	settleTime = 10 * time.Second
)

// These are how many attempts run at once: with the authority of the cluster, with authorities
// that objects name, and for each namespace. An authority that somebody has named and that
// does not answer does not keep others waiting.
const (
	slots          = 4
	foreignSlots   = 2
	namespaceSlots = 2
)

// Config is what the Manager needs.
type Config struct {
	// API may create and update Secrets of all namespaces, and get and patch the Manager's own
	// ones: kedge-acme-challenges and kedge-acme-accounts in kube-system.
	API kubernetes.Interface
	// Events gets what users should know about their objects.
	Events record.EventRecorder
	// Directory is the URL of the cluster's authority. Empty means LetsEncrypt.
	Directory string
	// Roots are the authorities that the server at Directory is verified with, or nil for
	// those of the host.
	Roots *x509.CertPool
	// Refused are ranges that no authority of an annotation may be in: those of pods and of
	// Services. Loopback and link-local addresses are always refused.
	Refused []netip.Prefix
}

// Objects are what the cluster has. Nobody changes them after they were given away.
type Objects struct {
	// Ingresses and Gateways are those that kedge serves.
	Ingresses []*netv1.Ingress
	Gateways  []*gwv1.Gateway
	// Owners knows which namespace has which host of the shared front. It is nil if hosts belong
	// to no namespace.
	Owners *hosts.Owners
	// OwnFronts are the Gateways, NAMESPACE/NAME, with addresses of their own. Their hosts are no
	// business of Owners: challenges for somebody else's host do not arrive there.
	OwnFronts map[string]bool
	// Secret returns a Secret, or nil if there is none.
	Secret func(namespace, name string) *corev1.Secret
}

// Manager gets and renews certificates while it runs.
type Manager struct {
	cfg Config
	log *logrus.Entry
	// changed receives when there is something to look at.
	changed loop.Changes
	// now and settle are replaced by tests.
	now    func() time.Time
	settle time.Duration

	mu      sync.Mutex
	objects *Objects
	// attempts are those of each name, and running has the certificates of attempts that run.
	attempts map[name]*attempt
	running  map[types.NamespacedName]*certificate
	// budgets are how many attempts each namespace may still make.
	budgets map[string]flowcontrol.PassiveRateLimiter
	// told has what objects were told at the last look, so that each fault is told once.
	told map[news]bool

	// accounts is held while the key of an account is read or made.
	accounts sync.Mutex
}

// news is something that an object was told.
type news struct {
	object  types.UID
	message string
}

// New makes a Manager.
func New(cfg Config) *Manager {
	cfg.Directory = cmp.Or(cfg.Directory, LetsEncrypt)
	return &Manager{
		cfg: cfg, log: logrus.WithField("component", "gateway"), changed: loop.NewChanges(), now: time.Now, settle: settleTime,
		attempts: map[name]*attempt{}, running: map[types.NamespacedName]*certificate{}, told: map[news]bool{},
		budgets: map[string]flowcontrol.PassiveRateLimiter{},
	}
}

// Update tells the Manager what the cluster has. It returns at once. If nobody asks for
// certificates any more, objects may be nil.
func (m *Manager) Update(objects *Objects) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects = objects
	m.changed.Notify()
}

// Run gets and renews certificates until ctx ends. Only the elected server calls it. When it
// has returned, it may be called again.
func (m *Manager) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	// Challenges of a server that was elected before have no order any more.
	for m.takeOver(ctx) != nil {
		if loop.Sleep(ctx, time.Second) != nil {
			return
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.changed:
		}
		timer.Reset(m.look(ctx, &running))
	}
}

// look starts the attempts that are due, and returns when to look again.
func (m *Manager) look(ctx context.Context, running *sync.WaitGroup) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		return longest
	}
	now := m.now()
	wanted, faults := wantedBy(m.objects, m.cfg.Directory)
	m.forget(now)
	told := map[news]bool{}
	tell := func(object *corev1.ObjectReference, kind, reason, message string) {
		one := news{object.UID, message}
		if !m.told[one] {
			m.cfg.Events.Event(object, kind, reason, events.Message(message))
		}
		told[one] = true
	}
	defer func() { m.told = told }()
	for _, fault := range faults {
		tell(fault.object, corev1.EventTypeWarning, reasonRefused, fault.message)
	}
	next := longest
	for _, c := range wanted {
		if m.running[c.secret] != nil {
			continue // the end of the attempt looks again
		}
		have := m.objects.Secret(c.secret.Namespace, c.secret.Name)
		if have != nil && !isOurs(have) {
			message := fmt.Sprintf("kedge leaves the Secret %q alone, because kedge did not make it. If kedge shall get the certificate, delete the Secret", c.secret.Name)
			for _, object := range c.objects {
				tell(object, corev1.EventTypeNormal, reasonForeign, message)
			}
			continue
		}
		at := m.notBefore(c, due(have, c))
		switch wait := at.Sub(now); {
		case wait > 0:
			next = min(next, wait)
		case !m.free(c):
			// The end of another attempt looks again.
		case !m.affords(c.secret.Namespace):
			next = min(next, budgetPause)
		default:
			m.running[c.secret] = c
			preferred := preferred(c, m.failures(c))
			running.Go(func() { m.attempt(ctx, c, preferred) })
		}
	}
	return next
}

// free tells whether an attempt may start now.
func (m *Manager) free(c *certificate) bool {
	same, namespace := 0, 0
	for _, other := range m.running {
		if m.isTrusted(other.directory) == m.isTrusted(c.directory) {
			same++
		}
		if other.secret.Namespace == c.secret.Namespace {
			namespace++
		}
	}
	limit := foreignSlots
	if m.isTrusted(c.directory) {
		limit = slots
	}
	return same < limit && namespace < namespaceSlots
}

// isTrusted tells whether an authority is the cluster's own.
func (m *Manager) isTrusted(directory string) bool { return directory == m.cfg.Directory }

// attempt gets a certificate, and writes its Secret.
func (m *Manager) attempt(ctx context.Context, c *certificate, preferred string) {
	limited, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	until, err := m.obtain(limited, c, preferred)
	changed := m.finish(ctx, c, until, err)
	if !changed {
		return
	}
	if err := m.remember(ctx); err != nil && ctx.Err() == nil {
		m.log.Warn(err)
	}
}

// finish counts an attempt that has ended, and tells what has become of it. It tells whether
// the failures are others than before.
func (m *Manager) finish(ctx context.Context, c *certificate, until time.Time, err error) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, c.secret)
	m.changed.Notify()
	switch {
	case ctx.Err() != nil:
		return false // this server is no longer the elected one
	case err != nil:
		message := explain(c, err, m.failed(c, err))
		m.log.Warn(message)
		m.tellAll(c, corev1.EventTypeWarning, reasonFailed, message)
		return true
	}
	changed = m.failures(c) > 0
	m.succeeded(c)
	m.tellAll(c, corev1.EventTypeNormal, reasonIssued, fmt.Sprintf("kedge got the certificate in the Secret %q. It is valid until %s", c.secret.Name, until.UTC().Format(time.RFC3339)))
	return changed
}

// tellAll writes an Event about each object that asks for a certificate.
func (m *Manager) tellAll(c *certificate, kind, reason, message string) {
	for _, object := range c.objects {
		m.cfg.Events.Event(object, kind, reason, events.Message(message))
	}
}

// forget drops attempts of long ago.
func (m *Manager) forget(now time.Time) {
	maps.DeleteFunc(m.attempts, func(_ name, a *attempt) bool { return now.Sub(a.Next) > memory })
}
