package acme

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// firstPause is the wait after the first failure of a name. Each further one doubles it, up
	// to lastPause: four attempts in the first hour. Let's Encrypt allows five failures an hour
	// for each name (letsencrypt.org/docs/rate-limits).
	firstPause = 5 * time.Minute
	lastPause  = 12 * time.Hour
	// limitPause is the least wait after the authority has said that there were too many
	// attempts.
	limitPause = time.Hour
	// successPause is the wait after a success, in which nothing can ask for the same name. It
	// also covers the time until the cache has the new Secret.
	successPause = 10 * time.Minute
	// longestLimit is the longest wait that an authority can ask for.
	longestLimit = 24 * time.Hour
	// budget is how many attempts a namespace may make at once, and budgetPause is the wait for
	// each further one. A user who changes hosts all the time gets no further. Let's Encrypt
	// allows an account 300 orders in three hours.
	budget      = 50
	budgetPause = 2 * time.Minute
	// memory is how long attempts are remembered after the next one was allowed.
	memory = time.Hour
	// longest is the longest wait for the next look.
	longest = time.Hour
)

// name is what attempts are counted by: those of one tenant do not delay another one.
type name struct{ Namespace, Host, Directory string }

// attempt is what is known about the attempts for a name.
type attempt struct {
	// Failures is how many failed since the last success.
	Failures int `json:"failures"`
	// Next is when the next one may start.
	Next time.Time `json:"next"`
}

// names returns the names of a certificate.
func (c *certificate) names() []name {
	var all []name
	for _, host := range c.hosts {
		all = append(all, name{c.secret.Namespace, host, c.directory})
	}
	return all
}

// due returns when the certificate in a Secret must be renewed: at two thirds of its life, and
// up to a twentieth later, so that certificates of one day are not renewed at once. The zero
// time means now: there is none, or it is another one than objects ask for.
func due(have *corev1.Secret, c *certificate) time.Time {
	if have == nil || have.Annotations[AnnotationServer] != c.directory {
		return time.Time{}
	}
	leaf, err := leafOf(have)
	if err != nil {
		return time.Time{}
	}
	for _, host := range c.hosts {
		if leaf.VerifyHostname(host) != nil {
			return time.Time{}
		}
	}
	return renewal(leaf)
}

// renewal returns when a certificate must be renewed. It is the same each time.
func renewal(leaf *x509.Certificate) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	sum := sha256.Sum256(leaf.Raw)
	later := float64(binary.BigEndian.Uint32(sum[:4])) / (1 << 32) / 20
	return leaf.NotBefore.Add(life*2/3 + time.Duration(later*float64(life)))
}

// notBefore returns when an attempt may start that is due at a time. The Manager is locked.
func (m *Manager) notBefore(c *certificate, at time.Time) time.Time {
	for _, of := range c.names() {
		if a := m.attempts[of]; a != nil && a.Next.After(at) {
			at = a.Next
		}
	}
	return at
}

// failures returns how many attempts for a certificate have failed since the last success.
func (m *Manager) failures(c *certificate) int {
	most := 0
	for _, of := range c.names() {
		if a := m.attempts[of]; a != nil {
			most = max(most, a.Failures)
		}
	}
	return most
}

// failed counts a failure, and returns when the next attempt may start.
func (m *Manager) failed(c *certificate, err error) time.Time {
	failures := m.failures(c) + 1
	pause := pauseAfter(failures)
	if least, limited := limitedFor(err); limited {
		pause = max(pause, min(max(least, limitPause), longestLimit))
	}
	// Certificates that failed together do not all come back together.
	pause += time.Duration(rand.Int64N(int64(pause / 10)))
	next := m.now().Add(pause)
	for _, of := range c.names() {
		m.attempts[of] = &attempt{Failures: failures, Next: next}
	}
	return next
}

// succeeded counts a success.
func (m *Manager) succeeded(c *certificate) {
	for _, of := range c.names() {
		m.attempts[of] = &attempt{Next: m.now().Add(successPause)}
	}
}

// affords tells whether a namespace may make another attempt, and counts it.
func (m *Manager) affords(namespace string) bool {
	of := m.budgets[namespace]
	if of == nil {
		of = flowcontrol.NewTokenBucketPassiveRateLimiter(float32(1/budgetPause.Seconds()), budget)
		m.budgets[namespace] = of
	}
	return of.TryAccept()
}

// pauseAfter returns the wait after a number of failures in a row.
func pauseAfter(failures int) time.Duration {
	pause := firstPause
	for i := 1; i < failures && pause < lastPause; i++ {
		pause *= 2
	}
	return min(pause, lastPause)
}
