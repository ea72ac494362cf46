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
// Of a revoked registration the Secret stays until the Node is deleted, so that nobody
// takes the name meanwhile. A registration that is gone never comes back: the node's next
// join makes another one, with another UID.
//
// The supervisor asks a Registry about the certificate of each request, and has it admit
// nodes. `kedge node` calls List and Revoke.
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
	// secretType is the type of the Secrets, by which they are selected.
	secretType = "kedge.dev/node-password"
	// A Secret keeps a hash of the node's password: who holds a token can add nodes, but
	// cannot become one that is there.
	saltKey, hashKey = "salt", "hash"
)

// Annotations of the Secret.
const (
	// registeredAnnotation says that the Node has been seen since the Secret was made.
	registeredAnnotation = "kedge.dev/registered"
	// addressesAnnotation has the addresses in the node's certificates, with commas.
	addressesAnnotation = "kedge.dev/addresses"
	// endAnnotation is when the newest certificates that carry the UID end, in RFC 3339.
	// Without it the node has certificates of an older kedge, which carry none.
	endAnnotation = "kedge.dev/certificates-end"
	// revokedAnnotation is when the registration was revoked, in RFC 3339.
	revokedAnnotation = "kedge.dev/revoked"
)

// NodeAnnotation is the annotation of a Node that has the UID of its registration, for
// other nodes: they cannot read the Secret.
const NodeAnnotation = "kedge.dev/registration"

// Patience is how long after its join a node may take to be seen in the API.
const Patience = 10 * time.Minute

// Registration is what the cluster keeps of a node that it has admitted.
type Registration struct {
	Node string
	// UID is in the node's certificates: see pki.RegistrationGroup.
	UID string
	// Addresses are those in the node's certificates; none if an older kedge signed them.
	Addresses []netip.Addr
	// CertificatesEnd is when the newest certificates end. It is zero as long as the node
	// has certificates of an older kedge, which carry no UID.
	CertificatesEnd time.Time
	// Joined is when the registration was made.
	Joined time.Time
	// Registered says that the Node has been seen.
	Registered bool
	// Revoked is when an administrator revoked the registration, or zero.
	Revoked time.Time
}

// of returns the registration that a Secret is.
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
			r.Revoked = r.Joined // whatever was written, somebody wanted it revoked
		}
	}
	return r
}

// late tells whether the node has not come in time.
func (r *Registration) late(now time.Time) bool {
	return !r.Registered && now.Sub(r.Joined) >= Patience
}

// accepts tells whether certificates that carry uid are those of the node. Certificates
// of an older kedge carry none, and are accepted until the node has others.
func (r *Registration) accepts(uid string) bool {
	return r.Revoked.IsZero() && (uid == r.UID || uid == "" && r.CertificatesEnd.IsZero())
}

// joinAddresses is the value of addressesAnnotation.
func joinAddresses(ips []netip.Addr) string {
	var texts []string
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	return strings.Join(texts, ",")
}

// ErrNotNow says that it is not known yet whether a node is registered. It passes by
// itself.
var ErrNotNow = errors.New("the server does not know its nodes yet")

// ErrRefused says that a certificate's registration is gone or revoked, or is not the
// one of its node.
var ErrRefused = errors.New("the registration of this certificate is gone or was revoked")

// TakenError says that a node's name is another's.
type TakenError struct{ Node string }

// Error implements error.
func (e *TakenError) Error() string {
	return fmt.Sprintf("the name %s is taken by another node: choose another by --node-name; "+
		"or, if that node is gone for good, delete it first: kubectl delete node %s", e.Node, e.Node)
}

// RevokedError says that a node was revoked and its Node is still there.
type RevokedError struct{ Node string }

// Error implements error.
func (e *RevokedError) Error() string {
	return fmt.Sprintf("node %s was revoked: if this machine may have the name again, delete the node first: kubectl delete node %s", e.Node, e.Node)
}

// AddressError says that another node has an address.
type AddressError struct {
	Address netip.Addr
	Owner   string
}

// Error implements error.
func (e *AddressError) Error() string {
	return fmt.Sprintf("node %[2]s has the address %[1]s: give this node another one by --node-ip; "+
		"if the address of %[2]s has changed, restart kedge there; if that node is gone for good, delete it: kubectl delete node %[2]s", e.Address, e.Owner)
}

// protects tells whether the Secret has the hash of a password.
func protects(secret *corev1.Secret, password string) bool {
	return password != "" && hmac.Equal(secret.Data[hashKey], hash(secret.Data[saltKey], password))
}

// hash need not be slow: a password is 16 random bytes, which nobody guesses.
func hash(salt []byte, password string) []byte {
	mac := hmac.New(sha256.New, salt)
	mac.Write([]byte(password))
	return mac.Sum(nil)
}

// newSalt returns 16 random bytes.
func newSalt() []byte {
	salt := make([]byte, 16)
	// crypto/rand ends the process if it cannot read.
	_, _ = rand.Read(salt)
	return salt
}

// sortByNode is the order in which registrations are listed.
func sortByNode(all []Registration) {
	slices.SortFunc(all, func(a, b Registration) int { return strings.Compare(a.Node, b.Node) })
}
