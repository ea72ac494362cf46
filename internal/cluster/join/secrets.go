package join

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Listed describes a bootstrap token without its secret.
type Listed struct {
	ID          string
	Description string
	// Expires is zero for a token that does not expire.
	Expires time.Time
	// Joins tells whether nodes can join with it.
	Joins bool
}

// GenerateToken returns a new secret for CreateToken: ID.SECRET.
func GenerateToken() string { return randomText(6) + "." + randomText(16) }

// CreateToken makes a join token in the cluster that client reaches. Its secret is that of
// GenerateToken, or a new one if secret is empty. The token expires after ttl, or never if
// ttl is zero. caPEM is the cluster's authority.
func CreateToken(ctx context.Context, client kubernetes.Interface, caPEM []byte, secret string, ttl time.Duration, description string) (Token, error) {
	if secret == "" {
		secret = GenerateToken()
	}
	if !bootstrapSecret.MatchString(secret) {
		return Token{}, errors.New("invalid token: use ID.SECRET, as `kedge token generate` prints it: 6 and 16 lower-case letters and digits")
	}
	id, key, _ := strings.Cut(secret, ".")
	hash, err := pki.CAHash(caPEM)
	if err != nil {
		return Token{}, err
	}
	data := map[string]string{
		bootstrapapi.BootstrapTokenIDKey:               id,
		bootstrapapi.BootstrapTokenSecretKey:           key,
		bootstrapapi.BootstrapTokenUsageAuthentication: "true",
		bootstrapapi.BootstrapTokenExtraGroupsKey:      NewcomersGroup,
		bootstrapapi.BootstrapTokenDescriptionKey:      description,
	}
	if ttl > 0 {
		data[bootstrapapi.BootstrapTokenExpirationKey] = time.Now().UTC().Add(ttl).Format(time.RFC3339)
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: data,
	}, metav1.CreateOptions{})
	if err != nil {
		return Token{}, fmt.Errorf("create token: %w", err)
	}
	return Token{Hash: hash, Secret: secret}, nil
}

// ListTokens returns the cluster's bootstrap tokens, the first to expire first.
func ListTokens(ctx context.Context, client kubernetes.Interface) ([]Listed, error) {
	secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(bootstrapapi.SecretTypeBootstrapToken),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	var tokens []Listed
	for _, secret := range secrets.Items {
		text := func(key string) string { return string(secret.Data[key]) }
		// Upstream's authenticator decides about a time that cannot be read.
		expires, _ := time.Parse(time.RFC3339, text(bootstrapapi.BootstrapTokenExpirationKey))
		tokens = append(tokens, Listed{
			ID:          text(bootstrapapi.BootstrapTokenIDKey),
			Description: text(bootstrapapi.BootstrapTokenDescriptionKey),
			Expires:     expires,
			Joins: text(bootstrapapi.BootstrapTokenUsageAuthentication) == "true" &&
				slices.Contains(strings.Split(text(bootstrapapi.BootstrapTokenExtraGroupsKey), ","), NewcomersGroup),
		})
	}
	slices.SortFunc(tokens, func(a, b Listed) int {
		switch {
		case a.Expires.Equal(b.Expires):
			return strings.Compare(a.ID, b.ID)
		case a.Expires.IsZero():
			return 1
		case b.Expires.IsZero():
			return -1
		}
		return a.Expires.Compare(b.Expires)
	})
	return tokens, nil
}

// DeleteToken deletes the bootstrap token with an ID. id may also be the whole token.
func DeleteToken(ctx context.Context, client kubernetes.Interface, id string) error {
	if _, credentials, whole := strings.Cut(id, "::"); whole {
		id = credentials
	}
	id, _, _ = strings.Cut(id, ".")
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, bootstrapapi.BootstrapTokenSecretPrefix+id, metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}

// randomText returns random lower-case letters and digits, which bootstrap tokens are
// made of.
func randomText(length int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	text := make([]byte, length)
	for i := range text {
		// crypto/rand never returns an error: it ends the process instead.
		n, _ := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		text[i] = letters[n.Int64()]
	}
	return string(text)
}
