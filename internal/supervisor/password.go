package supervisor

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/component"
)

// A node's name is its own from the first join on: a Secret keeps a hash of the
// password that the node made for itself. Who holds a token can add nodes, but
// not become one that is there.
const (
	passwordNamespace = "kube-system"
	passwordSuffix    = ".node-password.kedge"
	saltKey, hashKey  = "salt", "hash"
)

// registration is how long after its join a node may take to be seen in the
// API. Until it is, a name without a Node is not free. The annotation says that
// it has been seen; see NewRegistrar.
const (
	registration         = 10 * time.Minute
	registeredAnnotation = "kedge.dev/registered"
)

// takenError says that a node's name is another's.
type takenError struct{ node string }

func (e *takenError) Error() string {
	return fmt.Sprintf("the name %s is taken by another node: choose another by --node-name; "+
		"or, if that node is gone for good, delete it first: kubectl delete node %s", e.node, e.node)
}

// claim makes the name of a node that of whoever has the password. The error is
// a *takenError if somebody else has it.
func claim(ctx context.Context, client kubernetes.Interface, node, password string) error {
	if password == "" {
		return &takenError{node}
	}
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	secrets := client.CoreV1().Secrets(passwordNamespace)
	kept, err := secrets.Get(ctx, node+passwordSuffix, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return keep(ctx, client, node, password)
	case err != nil:
		return fmt.Errorf("read node password: %w", err)
	case hmac.Equal(kept.Data[hashKey], hash(kept.Data[saltKey], password)):
		return nil
	}
	// A node that was deleted has given its name back.
	_, err = client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case err == nil, kept.Annotations[registeredAnnotation] == "" && time.Since(kept.CreationTimestamp.Time) < registration:
		return &takenError{node}
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for node: %w", err)
	}
	err = secrets.Delete(ctx, kept.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(kept.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node password: %w", err)
	}
	return keep(ctx, client, node, password)
}

// keep makes the Secret. If it is suddenly there, two nodes joined at once.
func keep(ctx context.Context, client kubernetes.Interface, node, password string) error {
	salt := make([]byte, 16)
	// Never fails: crypto/rand ends the process rather.
	_, _ = rand.Read(salt)
	_, err := client.CoreV1().Secrets(passwordNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: node + passwordSuffix},
		Type:       "kedge.dev/node-password",
		Data:       map[string][]byte{saltKey: salt, hashKey: hash(salt, password)},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("keep node password: %w", err)
	}
	return nil
}

// hash need not be slow: a password is 16 random bytes, which nobody guesses.
func hash(salt []byte, password string) []byte {
	mac := hmac.New(sha256.New, salt)
	mac.Write([]byte(password))
	return mac.Sum(nil)
}

// NewClaim returns the component that claims the name of a server's own node
// before that is registered, for as long as it takes: the API may be another
// server's.
func NewClaim(client *rest.Config, node, password string) component.Component {
	return component.Step("node-name", func(ctx context.Context) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		return claimWhenAllowed(ctx, api, node, password)
	})
}

// claimWhenAllowed waits until the API server's authorizer, which learns of
// roles by a watch, has seen the one that has just been made.
func claimWhenAllowed(ctx context.Context, client kubernetes.Interface, node, password string) error {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, apiPatience) {
		err := claimForServer(ctx, client, node, password)
		if err == nil {
			return nil
		}
		if wait == apiPatience || !apierrors.IsForbidden(err) {
			logrus.WithField("component", "node-name").Warnf("Cannot claim the name of node %s, and will try again: %v", node, err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// claimForServer takes the name whoever had it: a server has the authorities, so
// it needs nobody's leave.
func claimForServer(ctx context.Context, client kubernetes.Interface, node, password string) error {
	err := claim(ctx, client, node, password)
	var taken *takenError
	if !errors.As(err, &taken) {
		return err
	}
	err = client.CoreV1().Secrets(passwordNamespace).Delete(ctx, node+passwordSuffix, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node password: %w", err)
	}
	return keep(ctx, client, node, password)
}
