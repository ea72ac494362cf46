package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// accountLabel marks the Secrets with keys of accounts, and accountKey is the key in their
	// data.
	accountLabel = "gateway.kedge.dev/acme-account"
	accountKey   = "key.pem"
	// maxAccounts is how many accounts there may be. Whoever may write an Ingress can ask for
	// one.
	maxAccounts = 100
	// retries and retryPause are for requests that an authority answered with a fault of its
	// own.
	retries    = 3
	retryPause = 2 * time.Second
)

// secretName returns the name of the Secret that has the key of an account.
func (a account) secretName() string {
	sum := sha256.Sum256([]byte(a.directory + "\n" + a.email))
	return "kedge-acme-account-" + hex.EncodeToString(sum[:8])
}

// login returns a client with the account. It makes the account if need be. Each authority
// gets a key of its own, so that no authority can use answers that are meant for another one.
func (m *Manager) login(ctx context.Context, of account, through *way) (*acme.Client, error) {
	key, err := m.accountKey(ctx, of)
	if err != nil {
		return nil, err
	}
	client := &acme.Client{Key: key, HTTPClient: through.client(), DirectoryURL: of.directory, UserAgent: "kedge", RetryBackoff: pauseBefore}
	directory, err := client.Discover(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	if directory.ExternalAccountRequired {
		return nil, errors.New("the authority needs an account that was made elsewhere (external account binding), which kedge cannot use: choose another authority, or use cert-manager")
	}
	wanted := &acme.Account{}
	if of.email != "" {
		wanted.Contact = []string{"mailto:" + of.email}
	}
	if _, err := client.Register(ctx, wanted, acme.AcceptTOS); err != nil && !errors.Is(err, acme.ErrAccountAlreadyExists) {
		return nil, fmt.Errorf("make an account: %w", err)
	}
	return client, nil
}

// pauseBefore returns the wait before a request is repeated, or a negative one for no
// repetition: an authority that has had too many requests gets none for an hour.
func pauseBefore(n int, _ *http.Request, answer *http.Response) time.Duration {
	if n > retries || answer.StatusCode == http.StatusTooManyRequests {
		return -1
	}
	return retryPause
}

// accountKey returns the key of an account, from its Secret. It makes both if there is none.
func (m *Manager) accountKey(ctx context.Context, of account) (*ecdsa.PrivateKey, error) {
	secrets := m.cfg.API.CoreV1().Secrets(metav1.NamespaceSystem)
	have, err := secrets.Get(ctx, of.secretName(), metav1.GetOptions{})
	if err == nil {
		return parseKey(have.Data[accountKey], of)
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read Secret %s: %w", of.secretName(), err)
	}
	others, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: accountLabel})
	if err != nil {
		return nil, fmt.Errorf("list accounts: %w", err)
	}
	if len(others.Items) >= maxAccounts {
		return nil, fmt.Errorf("there are %d accounts already: delete those that nobody uses, `kubectl get secrets -n %s -l %s`", len(others.Items), metav1.NamespaceSystem, accountLabel)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: of.secretName(), Labels: map[string]string{managedBy: "kedge", accountLabel: ""},
			Annotations: map[string]string{AnnotationServer: of.directory, AnnotationACME: of.email},
		},
		Data: map[string][]byte{accountKey: text},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another attempt was faster
		have, err = secrets.Get(ctx, of.secretName(), metav1.GetOptions{})
		if err == nil {
			return parseKey(have.Data[accountKey], of)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write Secret %s: %w", of.secretName(), err)
	}
	return key, nil
}

// parseKey reads the key of an account.
func parseKey(text []byte, of account) (*ecdsa.PrivateKey, error) {
	if block, _ := pem.Decode(text); block != nil {
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if key, ok := key.(*ecdsa.PrivateKey); ok {
				return key, nil
			}
		}
	}
	return nil, fmt.Errorf("the Secret %s/%s has no key: delete it, so that kedge makes a new account", metav1.NamespaceSystem, of.secretName())
}

// encodeKey returns a key as PEM.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
