package registration

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// apiPatience is how long the API server may take to answer. A node that joins gives up
// after ten seconds.
const apiPatience = 5 * time.Second

// Claim is what a node asks a server to certify.
type Claim struct {
	Node      string
	Addresses []netip.Addr
	// Password is the password that the node made for itself.
	Password string
	// CertificatesEnd is when the certificates expire that the node will get.
	CertificatesEnd time.Time
}

// Join gives a node's name to the machine that has the password, and returns the UID of
// the registration. *TakenError, *RevokedError and *AddressError are for the user to
// mend. All other errors pass by themselves.
func (r *Registry) Join(ctx context.Context, claim Claim) (uid string, err error) {
	if claim.Password == "" {
		return "", &TakenError{claim.Node}
	}
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	if err := r.checkAddresses(ctx, claim); err != nil {
		return "", err
	}
	return take(ctx, r.client, r.former, claim, false)
}

// Renew checks that a server may sign new certificates for a node, and returns the UID
// for them. shown is the UID in the certificate that the node shows, empty if an older
// kedge signed it. The node proves its password, except when it last renews with an older
// kedge, whose agents do not send it. The error is ErrRefused if the certificate may no
// longer be used, and otherwise as with Join.
func (r *Registry) Renew(ctx context.Context, shown string, claim Claim) (uid string, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	if err := r.checkAddresses(ctx, claim); err != nil {
		return "", err
	}
	secret, err := r.client.CoreV1().Secrets(namespace).Get(ctx, claim.Node+suffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", ErrRefused
	}
	if err != nil {
		return "", fmt.Errorf("read registration: %w", err)
	}
	registration := of(secret)
	if !registration.accepts(shown) {
		return "", ErrRefused
	}
	if older := shown == "" && claim.Password == ""; !older && !protects(secret, claim.Password) {
		return "", &TakenError{claim.Node}
	}
	return registration.UID, note(ctx, r.client, registration, claim)
}

// checkAddresses fails if another machine has one of the addresses. A machine that
// changes its node's name keeps its addresses, because it has the same password.
func (r *Registry) checkAddresses(ctx context.Context, claim Claim) error {
	for _, ip := range claim.Addresses {
		owners, err := r.owners(ip)
		if err != nil {
			return err
		}
		for _, owner := range owners {
			if owner == claim.Node {
				continue
			}
			secret, err := r.client.CoreV1().Secrets(namespace).Get(ctx, owner+suffix, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				own, err := r.former.proves(ctx, r.client, owner, claim.Password)
				if err != nil {
					return err
				}
				if !own {
					return &AddressError{ip, owner}
				}
			case err != nil:
				return fmt.Errorf("read registration: %w", err)
			case !protects(secret, claim.Password):
				return &AddressError{ip, owner}
			}
		}
	}
	return nil
}

// take makes the registration of a claim, or keeps the one that is there. With force it
// also takes a name that another node has, and needs no former.
func take(ctx context.Context, client kubernetes.Interface, former former, claim Claim, force bool) (uid string, err error) {
	secrets := client.CoreV1().Secrets(namespace)
	secret, err := secrets.Get(ctx, claim.Node+suffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if force {
			return create(ctx, client, claim)
		}
		own, err := former.proves(ctx, client, claim.Node, claim.Password)
		if err != nil {
			return "", err
		}
		if !own {
			return "", &TakenError{claim.Node}
		}
		return create(ctx, client, claim)
	}
	if err != nil {
		return "", fmt.Errorf("read registration: %w", err)
	}
	_, err = client.CoreV1().Nodes().Get(ctx, claim.Node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("look for node: %w", err)
	}
	registration, exists := of(secret), err == nil
	// The Node may be about to appear.
	taken := exists || !registration.Registered && !registration.late(time.Now())
	switch own := protects(secret, claim.Password); {
	case taken && own && registration.Revoked.IsZero():
		if force && registration.CertificatesEnd.IsZero() {
			// Someone may start an older kedge here again, whose certificates carry no
			// UID.
			claim.CertificatesEnd = time.Time{}
		}
		return registration.UID, note(ctx, client, registration, claim)
	case taken && !force && !own:
		return "", &TakenError{claim.Node}
	case taken && !force:
		return "", &RevokedError{claim.Node}
	}
	// The node that had the name was deleted or never appeared. Its certificates end
	// here.
	if err := remove(ctx, client, registration); err != nil {
		return "", err
	}
	return create(ctx, client, claim)
}

// create makes a registration. It fails if two nodes join under one name at the same
// time.
func create(ctx context.Context, client kubernetes.Interface, claim Claim) (uid string, err error) {
	salt := newSalt()
	secret, err := client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Node + suffix, Annotations: claim.annotations()},
		Type:       SecretType,
		Data:       map[string][]byte{saltKey: salt, hashKey: hash(salt, claim.Password)},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("keep registration: %w", err)
	}
	return string(secret.UID), nil
}

// annotations returns the annotations that say what will be certified.
func (c *Claim) annotations() map[string]string {
	annotations := map[string]string{addressesAnnotation: joinAddresses(c.Addresses)}
	if !c.CertificatesEnd.IsZero() {
		annotations[endAnnotation] = c.CertificatesEnd.UTC().Format(time.RFC3339)
	}
	return annotations
}

// note writes to a registration what will be certified.
func note(ctx context.Context, client kubernetes.Interface, registration Registration, claim Claim) error {
	return annotate(ctx, client, registration, claim.annotations())
}

// annotate sets annotations of a registration, unless another one has taken its place.
func annotate(ctx context.Context, client kubernetes.Interface, registration Registration, annotations map[string]string) error {
	changes := map[string]any{"metadata": map[string]any{"uid": registration.UID, "annotations": annotations}}
	if err := mergepatch.Send(ctx, client.CoreV1().Secrets(namespace), registration.Node+suffix, changes); err != nil {
		return fmt.Errorf("write registration: %w", err)
	}
	return nil
}

// remove deletes a registration, unless another one has taken its place.
func remove(ctx context.Context, client kubernetes.Interface, registration Registration) error {
	err := client.CoreV1().Secrets(namespace).Delete(ctx, registration.Node+suffix,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(registration.UID)})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete registration: %w", err)
	}
	return nil
}

// NewServerNode returns the component that registers a server's own node before its
// kubelet does. It tries until it succeeds, because the API may be on another server. The
// server takes the name even from another node: it has the authorities and needs no
// permission.
func NewServerNode(client kubernetes.Interface, claim Claim) component.Component {
	return component.Step("node-name", func(ctx context.Context) error {
		return registerWhenAllowed(ctx, client, claim)
	})
}

// registerWhenAllowed registers the node, and tries again until that succeeds.
func registerWhenAllowed(ctx context.Context, client kubernetes.Interface, claim Claim) error {
	return allowedSoon(logrus.WithField("component", "node-name")).Until(ctx, func(ctx context.Context) error {
		asking, cancel := context.WithTimeout(ctx, apiPatience)
		defer cancel()
		_, err := take(asking, client, nil, claim, true)
		if err != nil {
			err = fmt.Errorf("cannot register node %s yet: %w", claim.Node, err)
		}
		component.Report(ctx, err)
		return err
	})
}

// allowedSoon returns a Loop that does not say at first that something is forbidden: the API
// server's authorizer learns of roles by a watch.
func allowedSoon(log *logrus.Entry) loop.Loop {
	began := time.Now()
	return loop.Loop{Log: log, First: 20 * time.Millisecond, Last: apiPatience, Quiet: func(err error) bool {
		return apierrors.IsForbidden(err) && time.Since(began) < apiPatience
	}}
}
