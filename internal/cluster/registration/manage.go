package registration

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// serverLabels are the labels of the Nodes of servers. Each has at least one.
var serverLabels = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"}

// List returns all registrations, in the order of their nodes' names.
func List(ctx context.Context, client kubernetes.Interface) ([]Registration, error) {
	secrets, err := client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", SecretType).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list registrations: %w", err)
	}
	var all []Registration
	for _, secret := range secrets.Items {
		all = append(all, of(&secret))
	}
	sortByNode(all)
	return all, nil
}

// Revoke ends all certificates of a node within seconds. Its Node object stays and keeps
// the name until somebody deletes it. A server cannot be revoked, because it has the
// authorities.
func Revoke(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look for node: %w", err)
	}
	server := func(label string) bool { return node.Labels[label] != "" }
	if err == nil && slices.ContainsFunc(serverLabels, server) {
		return fmt.Errorf("node %[1]s is a server and cannot be revoked, because its disk has the cluster's certificate authorities and token: "+
			"run `kubectl delete node %[1]s`, then `kedge token rotate` and `kedge certificate rotate-ca` on another server", name)
	}
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name+suffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no node %s is registered: `kedge node list` shows the names", name)
	}
	if err != nil {
		return fmt.Errorf("read registration: %w", err)
	}
	registration := of(secret)
	if !registration.Revoked.IsZero() {
		return nil
	}
	return annotate(ctx, client, registration, map[string]string{revokedAnnotation: time.Now().UTC().Format(time.RFC3339)})
}
