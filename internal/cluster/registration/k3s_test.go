package registration

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/crypto/scrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// k3sHash returns a hash as k3s makes it, with less work.
func k3sHash(t *testing.T, password string) string {
	t.Helper()
	key, err := scrypt.Key([]byte(password), []byte("salt"), 1<<4, 8, 1, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("$1:%x:4:8:1:%s", "salt", base64.RawStdEncoding.EncodeToString(key))
}

func TestMatchesK3s(t *testing.T) {
	right := k3sHash(t, "one")
	for _, test := range []struct {
		hash, password string
		want           bool
	}{
		{right, "one", true},
		{right, "two", false},
		{right, "", false},
		{"", "one", false},
		{"$2" + right[2:], "one", false},
		{"$1:616263:abc", "one", false},
		{"$1:73616c74:40:8:1:AAAA", "one", false},
		{"$1:73616c74:4:8:-1:AAAA", "one", false},
		{"$1:73616c74:20:20:20:AAAA", "one", false},
		{"$1:73616c74:4:8:1:", "one", false},
		{"$1:73616c74:4:8:1:!", "one", false},
		{"$1:x:4:8:1:AAAA", "one", false},
	} {
		if got := matchesK3s(test.hash, test.password); got != test.want {
			t.Errorf("%q matches %q: %t", test.hash, test.password, got)
		}
	}
}

// A Node that joined with k3s joins with its k3s password, and nobody else does in its name
// or with its address.
func TestJoinFromK3s(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "edge" + k3sSuffix, Namespace: namespace},
		Data:       map[string][]byte{k3sHashKey: []byte(k3sHash(t, "one"))},
	}
	gone := secret.DeepCopy()
	gone.Name = "gone" + k3sSuffix
	client := newClient(nodeNamed("edge", "192.0.2.1"), secret, gone)
	r := start(t, client)
	var taken *TakenError
	if _, err := r.Join(t.Context(), claimOf("edge", "two")); !errors.As(err, &taken) {
		t.Errorf("another machine: got error %v, want that the name is taken", err)
	}
	var address *AddressError
	if _, err := r.Join(t.Context(), claimOf("other", "two", "192.0.2.1")); !errors.As(err, &address) {
		t.Errorf("another machine: got error %v, want that the address is taken", err)
	}
	if _, err := r.Join(t.Context(), claimOf("gone", "two")); err != nil {
		t.Errorf("the name of a Node that is gone: %v", err)
	}
	if _, err := r.Join(t.Context(), claimOf("edge", "one", "192.0.2.1")); err != nil {
		t.Errorf("the same machine: %v", err)
	}
	if _, err := r.Join(t.Context(), claimOf("edge", "two")); !errors.As(err, &taken) {
		t.Errorf("another machine, afterwards: got error %v, want that the name is taken", err)
	}
	if err := registerWhenAllowed(t.Context(), newClient(nodeNamed("edge"), secret), claimOf("edge", "two")); err != nil {
		t.Errorf("a server: %v", err)
	}
}

// Checks of k3s's hashes take much memory: the second waits for the first, until its request
// ends. A join that needs no check does not wait.
func TestJoinFromK3sWaits(t *testing.T) {
	hash := func(node string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: node + k3sSuffix, Namespace: namespace},
			Data:       map[string][]byte{k3sHashKey: []byte(k3sHash(t, "one"))},
		}
	}
	client := newClient(nodeNamed("edge", "192.0.2.1"), nodeNamed("far", "192.0.2.2"), hash("edge"), hash("far"))
	r := start(t, client)
	r.former <- struct{}{} // a check that lasts
	if _, err := r.Join(t.Context(), claimOf("new", "two")); err != nil {
		t.Errorf("a new node: %v", err)
	}
	for _, claim := range []Claim{claimOf("edge", "one"), claimOf("other", "one", "192.0.2.2")} {
		ctx, cancel := context.WithCancel(t.Context())
		joined := make(chan error, 1)
		go func() {
			_, err := r.Join(ctx, claim)
			joined <- err
		}()
		cancel()
		if err := <-joined; !errors.Is(err, context.Canceled) {
			t.Errorf("%s during a check: got error %v, want that its request has ended", claim.Node, err)
		}
	}
	joined := make(chan error, 2)
	for _, node := range []string{"edge", "far"} {
		go func() {
			_, err := r.Join(t.Context(), claimOf(node, "one"))
			joined <- err
		}()
	}
	<-r.former
	if err := errors.Join(<-joined, <-joined); err != nil {
		t.Errorf("after the check: %v", err)
	}
}
