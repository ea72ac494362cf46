package registration

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/crypto/scrypt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// k3sSuffix ends the names of the Secrets in which k3s keeps the hashes of its
	// nodes' passwords. In a cluster that was adopted from k3s, a Node has such a Secret
	// until it joins with kedge. k3sHashKey is the key of the hash.
	k3sSuffix  = ".node-password.k3s"
	k3sHashKey = "hash"
	// scryptMost limits each parameter of a hash, and scryptBytes the memory that it takes.
	// k3s's own hashes take 32 MiB.
	scryptMost  = 20
	scryptBytes = 128 << 20
)

// former checks passwords of Nodes that joined with k3s. A check takes up to scryptBytes of
// memory, so each one waits until the one before it has ended. former is a channel of
// capacity 1, which holds a value during a check.
type former chan struct{}

// proves tells whether a password is that of a Node that joined with k3s, or there is no
// such Node. It fails if ctx ends before the check begins.
func (f former) proves(ctx context.Context, client kubernetes.Interface, node, password string) (bool, error) {
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, strings.ToLower(node)+k3sSuffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read registration: %w", err)
	}
	_, err = client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for node: %w", err)
	}
	select {
	case f <- struct{}{}:
		defer func() { <-f }()
		return matchesK3s(string(secret.Data[k3sHashKey]), password), nil
	case <-ctx.Done():
		return false, fmt.Errorf("wait for other nodes that join: %w", ctx.Err())
	}
}

// matchesK3s tells whether a hash is that of a password. k3s's hashes are
// $1:SALT:N:R:P:KEY, with the salt in hexadecimal, the logarithm N and the parameters R
// and P of scrypt, and the key in base64
// (github.com/k3s-io/k3s, pkg/authenticator/hash/scrypt.go).
func matchesK3s(hash, password string) bool {
	parts := strings.Split(hash, ":")
	if password == "" || len(parts) != 6 || parts[0] != "$1" {
		return false
	}
	salt, err := hex.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var numbers [3]int
	for i, text := range parts[2:5] {
		if numbers[i], err = strconv.Atoi(text); err != nil || numbers[i] < 1 || numbers[i] > scryptMost {
			return false
		}
	}
	if 128*numbers[1]<<numbers[0] > scryptBytes {
		return false
	}
	want, err := base64.RawStdEncoding.DecodeString(parts[5])
	if err != nil || len(want) == 0 {
		return false
	}
	got, err := scrypt.Key([]byte(password), salt, 1<<numbers[0], numbers[1], numbers[2], len(want))
	return err == nil && subtle.ConstantTimeCompare(got, want) == 1
}
