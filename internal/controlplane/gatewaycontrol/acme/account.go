package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/crypto/acme"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// accountsName is the Secret with the keys of accounts. There is one for all, so that kedge needs
// to read no other Secret.
var accountsName = types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kedge-acme-accounts"}

const (
	// maxAccounts is how many accounts there may be. Whoever may write an Ingress can ask for
	// one.
	maxAccounts = 100
	// retries and retryPause are for requests that an authority answered with a fault of its
	// own.
	retries    = 3
	retryPause = 2 * time.Second
)

// storedAccount is an account in the Secret.
type storedAccount struct {
	Directory string `json:"directory"`
	Email     string `json:"email,omitempty"`
	// Key is in PEM.
	Key string `json:"key"`
}

// key returns the key of an account in the Secret.
func (a account) key() string {
	sum := sha256.Sum256([]byte(a.directory + "\n" + a.email))
	return hex.EncodeToString(sum[:16])
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

// accountKey returns the key of an account, from the Secret. It makes both if there is none.
func (m *Manager) accountKey(ctx context.Context, of account) (*ecdsa.PrivateKey, error) {
	m.accounts.Lock() // of two attempts for the same account, one makes it
	defer m.accounts.Unlock()
	have, err := m.cfg.API.CoreV1().Secrets(accountsName.Namespace).Get(ctx, accountsName.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", accountsName, err)
	case have.Data[of.key()] != nil:
		return parseAccount(have.Data[of.key()], of)
	case len(have.Data) >= maxAccounts:
		return nil, fmt.Errorf("there are %d accounts already: remove those that nobody uses from the Secret %s, or delete it", len(have.Data), accountsName)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	stored, err := json.Marshal(storedAccount{Directory: of.directory, Email: of.email, Key: string(text)})
	if err != nil {
		return nil, fmt.Errorf("encode account: %w", err)
	}
	return key, m.patch(ctx, accountsName, map[string][]byte{of.key(): stored})
}

// parseAccount reads the key of an account.
func parseAccount(text []byte, of account) (*ecdsa.PrivateKey, error) {
	var stored storedAccount
	if json.Unmarshal(text, &stored) == nil {
		if block, _ := pem.Decode([]byte(stored.Key)); block != nil {
			if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				if key, ok := key.(*ecdsa.PrivateKey); ok {
					return key, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("%s in the Secret %s has no key of an account: remove it, so that kedge makes a new account", of.key(), accountsName)
}

// encodeKey returns a key as PEM.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
