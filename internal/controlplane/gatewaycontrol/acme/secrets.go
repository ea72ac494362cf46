package acme

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// managedBy is the label of Secrets that kedge made. Its value is kedge.
const managedBy = "app.kubernetes.io/managed-by"

// attemptsKey is the key of the Secret ChallengesName that has the failed attempts, so that a
// server that is elected next, or starts again, does not begin anew. At most maxAttempts are
// kept.
const (
	attemptsKey = "attempts"
	maxAttempts = 1000
)

// errForeign means that kedge did not make a Secret.
var errForeign = errors.New("kedge did not make it")

// isOurs tells whether kedge made a Secret with a certificate, and so may change it.
func isOurs(secret *corev1.Secret) bool {
	return secret.Type == corev1.SecretTypeTLS && secret.Labels[managedBy] == "kedge"
}

// leafOf returns the certificate in a Secret.
func leafOf(secret *corev1.Secret) (*x509.Certificate, error) {
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, errors.New("it has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}

// readOurs returns the Secret of a certificate from the cache, or nil if there is none. It
// fails if the Secret belongs to somebody else.
func (m *Manager) readOurs(c *certificate) (*corev1.Secret, error) {
	m.mu.Lock()
	objects := m.objects
	m.mu.Unlock()
	if objects == nil {
		return nil, fmt.Errorf("use Secret %s: nobody asks for certificates any more", c.secret)
	}
	have := objects.Secret(c.secret.Namespace, c.secret.Name)
	if have != nil && !isOurs(have) {
		return nil, fmt.Errorf("use Secret %s: %w", c.secret, errForeign)
	}
	return have, nil
}

// store writes the Secret of a certificate. If the cache is behind, it fails, and the Secret of
// somebody else stays as it is.
func (m *Manager) store(ctx context.Context, c *certificate, got *routing.Certificate) error {
	data := map[string][]byte{corev1.TLSCertKey: []byte(got.Chain), corev1.TLSPrivateKeyKey: []byte(got.Key)}
	have, err := m.readOurs(c)
	if err != nil {
		return err
	}
	secrets := m.cfg.API.CoreV1().Secrets(c.secret.Namespace)
	if have == nil {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: c.secret.Name, Labels: map[string]string{managedBy: "kedge"}, Annotations: map[string]string{AnnotationServer: c.directory},
			},
			Type: corev1.SecretTypeTLS, Data: data,
		}, metav1.CreateOptions{})
	} else {
		have = have.DeepCopy()
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, AnnotationServer, c.directory)
		have.Data = data
		// With the version of the cache, it fails if somebody has changed the Secret since.
		_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", c.secret, err)
	}
	return nil
}

// patch changes keys of one of the Manager's own Secrets. A key with nil is removed.
func (m *Manager) patch(ctx context.Context, secret types.NamespacedName, data map[string][]byte) error {
	secrets := m.cfg.API.CoreV1().Secrets(secret.Namespace)
	var err error
	for {
		err = mergepatch.Send(ctx, secrets, secret.Name, map[string]any{"data": data})
		if !apierrors.IsNotFound(err) {
			break
		}
		left := maps.Clone(data)
		maps.DeleteFunc(left, func(_ string, value []byte) bool { return value == nil })
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: secret.Name, Labels: map[string]string{managedBy: "kedge"}},
			Data:       left,
		}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) { // another attempt was faster
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", secret, err)
	}
	return nil
}

// remembered is an attempt with its name, as the Secret has it.
type remembered struct {
	name
	attempt
}

// takeOver reads the attempts of the server that was elected before, and takes its challenges
// back.
func (m *Manager) takeOver(ctx context.Context) error {
	secrets := m.cfg.API.CoreV1().Secrets(ChallengesName.Namespace)
	have, err := secrets.Get(ctx, ChallengesName.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", ChallengesName, err)
	}
	var all []remembered
	// What cannot be read is forgotten.
	_ = json.Unmarshal(have.Data[attemptsKey], &all)
	m.mu.Lock()
	for i := range all {
		m.attempts[all[i].name] = &all[i].attempt
	}
	m.mu.Unlock()
	old := map[string][]byte{}
	for key := range have.Data {
		if strings.HasPrefix(key, challengePrefix) {
			old[key] = nil
		}
	}
	if len(old) == 0 {
		return nil
	}
	return m.patch(ctx, ChallengesName, old)
}

// remember writes the failed attempts, if they are others than those that are written.
func (m *Manager) remember(ctx context.Context) error {
	m.mu.Lock()
	var all []remembered
	for of, a := range m.attempts {
		if a.Failures > 0 {
			all = append(all, remembered{of, *a})
		}
	}
	m.mu.Unlock()
	// The latest ones are kept.
	slices.SortFunc(all, func(a, b remembered) int {
		if order := b.Next.Compare(a.Next); order != 0 {
			return order
		}
		return strings.Compare(a.Namespace+a.Host+a.Directory, b.Namespace+b.Host+b.Directory)
	})
	text, err := json.Marshal(all[:min(len(all), maxAttempts)])
	if err != nil {
		return fmt.Errorf("encode attempts: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return m.patch(ctx, ChallengesName, map[string][]byte{attemptsKey: text})
}
