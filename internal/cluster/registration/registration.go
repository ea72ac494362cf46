// Package registration knows which nodes the cluster has admitted. A registration is a
// Secret in kube-system for each node. It is made when the node joins, and its UID is in
// all certificates of the node: these are accepted as long as the registration is there.
//
//	joining ──────► pending ──────► registered ──────► gone
//	  (token)          │   the Node     │    the Node      ▲
//	                   │   is there     │    is deleted    │
//	                   │                └──► revoked ──────┤
//	                   └───────────────────────────────────┘
//	                        no Node within ten minutes
//
// The Secret of a revoked registration stays until the Node is deleted, so that nobody
// takes the name meanwhile. A registration that is gone never comes back: when the node
// joins again, it gets a new one with another UID.
//
// The supervisor asks a Registry about the certificate of each request, and admits nodes
// with it. `kedge node` calls List and Revoke.
package registration

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	namespace = "kube-system"
	suffix    = ".node-password.kedge"
	// SecretType is the type of the Secrets, by which they are selected.
	SecretType = "kedge.dev/node-password"
	// A Secret keeps a hash of the node's password. So the holder of a token can add
	// nodes, but cannot become a node that exists.
	saltKey, hashKey = "salt", "hash"
)

// Annotations of the Secret.
const (
	// registeredAnnotation says that the Node has been seen since the Secret was made.
	registeredAnnotation = "kedge.dev/registered"
	// addressesAnnotation has the addresses in the node's certificates, separated by
	// commas.
	addressesAnnotation = "kedge.dev/addresses"
	// endAnnotation is when the newest certificates that carry the UID expire, in RFC
	// 3339. Without it, the node has certificates of an older kedge, which carry no UID.
	endAnnotation = "kedge.dev/certificates-end"
	// revokedAnnotation is when the registration was revoked, in RFC 3339.
	revokedAnnotation = "kedge.dev/revoked"
)

// NodeAnnotation is the annotation of a Node with the UID of its registration. It is for
// other nodes, which cannot read the Secret.
const NodeAnnotation = "kedge.dev/registration"

// Revoked is the value of NodeAnnotation if the registration was revoked.
const Revoked = "revoked"

// Patience is how long after its join a node may take to be seen in the API.
const Patience = 10 * time.Minute

// Registration is what the cluster knows about a node that it has admitted.
type Registration struct {
	Node string
	// UID is in the node's certificates: see pki.RegistrationGroup.
	UID string
	// Addresses are those in the node's certificates; none if an older kedge signed them.
	Addresses []netip.Addr
	// CertificatesEnd is when the newest certificates expire. It is zero while the node
	// has certificates of an older kedge, which carry no UID.
	CertificatesEnd time.Time
	// Joined is when the registration was made.
	Joined time.Time
	// Registered says that the Node has been seen.
	Registered bool
	// Revoked is when an administrator revoked the registration, or zero.
	Revoked time.Time
}

// of returns the registration that a Secret holds.
func of(secret *corev1.Secret) Registration {
	r := Registration{
		Node:       strings.TrimSuffix(secret.Name, suffix),
		UID:        string(secret.UID),
		Joined:     secret.CreationTimestamp.Time,
		Registered: secret.Annotations[registeredAnnotation] != "",
	}
	for _, text := range strings.Split(secret.Annotations[addressesAnnotation], ",") {
		if ip, err := netip.ParseAddr(text); err == nil {
			r.Addresses = append(r.Addresses, ip)
		}
	}
	r.CertificatesEnd, _ = time.Parse(time.RFC3339, secret.Annotations[endAnnotation])
	if text, revoked := secret.Annotations[revokedAnnotation]; revoked {
		var err error
		if r.Revoked, err = time.Parse(time.RFC3339, text); err != nil {
			r.Revoked = r.Joined // the time cannot be read, but somebody wanted the node revoked
		}
	}
	return r
}

// late tells whether the Node has not appeared in time.
func (r *Registration) late(now time.Time) bool {
	return !r.Registered && now.Sub(r.Joined) >= Patience
}

// accepts tells whether certificates that carry uid are accepted as the node's.
// Certificates of an older kedge carry none. They are accepted until the node has newer
// ones.
func (r *Registration) accepts(uid string) bool {
	return r.Revoked.IsZero() && (uid == r.UID || uid == "" && r.CertificatesEnd.IsZero())
}

// joinAddresses returns the value of addressesAnnotation.
func joinAddresses(ips []netip.Addr) string {
	var texts []string
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	return strings.Join(texts, ",")
}

// ErrNotNow says that this server does not know yet whether a node is registered. It
// passes by itself.
var ErrNotNow = errors.New("this server has not read the list of its nodes yet")

// ErrRefused says that a certificate's registration is gone or revoked, or belongs to
// another node.
var ErrRefused = errors.New("the registration of this certificate is gone or was revoked")

// TakenError says that another node has the name.
type TakenError struct{ Node string }

// Error implements error.
func (e *TakenError) Error() string {
	return fmt.Sprintf("the name %s is taken by another node: choose another name with --node-name, "+
		"or, if that node is gone for good, delete it first: kubectl delete node %s", e.Node, e.Node)
}

// RevokedError says that a node was revoked and its Node still exists.
type RevokedError struct{ Node string }

// Error implements error.
func (e *RevokedError) Error() string {
	return fmt.Sprintf("node %s was revoked: to let this machine join again, delete the node first: kubectl delete node %s", e.Node, e.Node)
}

// AddressError says that another node has the address.
type AddressError struct {
	Address netip.Addr
	Owner   string
}

// Error implements error.
func (e *AddressError) Error() string {
	return fmt.Sprintf("node %[2]s has the address %[1]s: give this node another address with --node-ip. "+
		"If the address of %[2]s has changed, restart kedge there. If that node is gone for good, delete it: kubectl delete node %[2]s", e.Address, e.Owner)
}

// protects tells whether the Secret has the hash of a password.
func protects(secret *corev1.Secret, password string) bool {
	return password != "" && hmac.Equal(secret.Data[hashKey], hash(secret.Data[saltKey], password))
}

// hash is fast, because a password is 16 random bytes, which nobody can guess.
func hash(salt []byte, password string) []byte {
	mac := hmac.New(sha256.New, salt)
	mac.Write([]byte(password))
	return mac.Sum(nil)
}

// newSalt returns 16 random bytes.
func newSalt() []byte {
	salt := make([]byte, 16)
	// crypto/rand never returns an error: it ends the process instead.
	_, _ = rand.Read(salt)
	return salt
}

// sortByNode sorts registrations by their nodes' names.
func sortByNode(all []Registration) {
	slices.SortFunc(all, func(a, b Registration) int { return strings.Compare(a.Node, b.Node) })
}
