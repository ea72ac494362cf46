package acme

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/acme"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// These are the kinds of challenges.
const (
	http01    = "http-01"
	tlsALPN01 = "tls-alpn-01"
)

// retractTime is how long taking challenges back may take.
const retractTime = 10 * time.Second

// obtain gets a certificate, and writes its Secret. preferred is the kind of challenge, if the
// authority offers it. obtain returns until when the certificate is valid.
func (m *Manager) obtain(ctx context.Context, c *certificate, preferred string) (until time.Time, err error) {
	// Nobody asks for a certificate that cannot be kept.
	have, err := m.readOurs(c)
	if err != nil {
		return time.Time{}, err
	}
	if at := due(have, c); at.After(m.now()) {
		return at, nil // an attempt before this one got it
	}
	through := m.newWay(c.directory)
	defer through.close()
	client, err := m.login(ctx, c.account, through)
	if err != nil {
		return time.Time{}, err
	}
	order, err := client.AuthorizeOrder(ctx, acme.DomainIDs(c.hosts...))
	if err != nil {
		return time.Time{}, fmt.Errorf("make an order: %w", err)
	}
	if err := m.authorize(ctx, client, c, order, preferred); err != nil {
		return time.Time{}, err
	}
	if order, err = client.WaitOrder(ctx, order.URI); err != nil {
		return time.Time{}, fmt.Errorf("wait for the order: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return time.Time{}, fmt.Errorf("make key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: c.hosts}, key)
	if err != nil {
		return time.Time{}, fmt.Errorf("make request: %w", err)
	}
	chain, _, err := client.CreateCertFromOrder(ctx, order, request, true)
	if err != nil {
		return time.Time{}, fmt.Errorf("get the certificate: %w", err)
	}
	got, err := encode(chain, key)
	if err != nil {
		return time.Time{}, err
	}
	leaf, err := m.check(got, c)
	if err != nil {
		return time.Time{}, fmt.Errorf("the authority sent a certificate that cannot be used: %w", err)
	}
	return leaf.NotAfter, m.store(ctx, c, got)
}

// authorize proves to the authority that the hosts of an order lead here.
func (m *Manager) authorize(ctx context.Context, client *acme.Client, c *certificate, order *acme.Order, preferred string) error {
	if len(order.AuthzURLs) > len(c.hosts) {
		return fmt.Errorf("the authority wants %d proofs for %d hosts", len(order.AuthzURLs), len(c.hosts))
	}
	var challenges []Challenge
	var chosen []*acme.Challenge
	var pending []string
	for _, url := range order.AuthzURLs {
		authorization, err := client.GetAuthorization(ctx, url)
		if err != nil {
			return fmt.Errorf("read an authorization: %w", err)
		}
		host := authorization.Identifier.Value
		switch {
		case authorization.Status == acme.StatusValid:
			continue // from an order before
		case !slices.Contains(c.hosts, host) || authorization.Wildcard:
			return fmt.Errorf("the authority wants a proof for %q, which nobody has asked for", clip(host))
		}
		challenge := choose(authorization.Challenges, preferred)
		if challenge == nil {
			return fmt.Errorf("the authority offers no challenge %s or %s for %q", http01, tlsALPN01, host)
		}
		answer, err := answerTo(client, challenge, host)
		if err != nil {
			return err
		}
		answer.Fronts = c.fronts
		challenges, chosen, pending = append(challenges, answer), append(chosen, challenge), append(pending, authorization.URI)
	}
	if len(challenges) == 0 {
		return nil
	}
	// Challenges are also taken back if the server is no longer the elected one.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retractTime)
		defer cancel()
		if err := m.retract(ctx, challenges); err != nil {
			m.log.Warn(err)
		}
	}()
	if err := m.publish(ctx, challenges); err != nil {
		return err
	}
	if err := loop.Sleep(ctx, m.settle); err != nil {
		return err
	}
	for _, challenge := range chosen {
		if _, err := client.Accept(ctx, challenge); err != nil {
			return fmt.Errorf("accept a challenge: %w", err)
		}
	}
	for _, url := range pending {
		if _, err := client.WaitAuthorization(ctx, url); err != nil {
			return fmt.Errorf("prove a host: %w", err)
		}
	}
	return nil
}

// preferred returns the kind of challenge of the next attempt, after a number of failures.
func preferred(c *certificate, failures int) string {
	if (failures%2 == 1) != c.byTLS {
		return tlsALPN01
	}
	return http01
}

// choose returns the challenge of the preferred kind, or else the other kind, or nil.
func choose(offered []*acme.Challenge, preferred string) *acme.Challenge {
	var other *acme.Challenge
	for _, challenge := range offered {
		switch challenge.Type {
		case preferred:
			return challenge
		case http01, tlsALPN01:
			other = challenge
		}
	}
	return other
}

// maxToken is how long a token may be. Let's Encrypt's has 43 letters.
const maxToken = 256

// answerTo returns the answer to a challenge.
func answerTo(client *acme.Client, challenge *acme.Challenge, host string) (Challenge, error) {
	answer := Challenge{Host: host}
	// The token is a part of a path (RFC 8555, section 8.3).
	isOther := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	token := challenge.Token
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, isOther) {
		return answer, fmt.Errorf("the authority sent %q, which is not a token", clip(token))
	}
	if challenge.Type == http01 {
		text, err := client.HTTP01ChallengeResponse(token)
		if err != nil {
			return answer, fmt.Errorf("make an answer: %w", err)
		}
		answer.Token, answer.Answer = token, text
		return answer, nil
	}
	certificate, err := client.TLSALPN01ChallengeCert(token, host)
	if err != nil {
		return answer, fmt.Errorf("make an answer: %w", err)
	}
	key, ok := certificate.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return answer, errors.New("make an answer: the key is of another kind")
	}
	answer.Certificate, err = encode(certificate.Certificate, key)
	return answer, err
}

// encode returns a chain and its key as PEM.
func encode(chain [][]byte, key *ecdsa.PrivateKey) (*routing.Certificate, error) {
	var text []byte
	for _, der := range chain {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	private, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return &routing.Certificate{Chain: string(text), Key: string(private)}, nil
}

// check returns the leaf of a certificate that an authority sent. It fails if the certificate
// is not what was asked for.
func (m *Manager) check(got *routing.Certificate, c *certificate) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(got.Chain), []byte(got.Key))
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, err
	}
	for _, host := range c.hosts {
		if err := leaf.VerifyHostname(host); err != nil {
			return nil, err
		}
	}
	if !leaf.NotAfter.After(m.now()) {
		return nil, fmt.Errorf("it was valid until %s", leaf.NotAfter)
	}
	return leaf, nil
}
