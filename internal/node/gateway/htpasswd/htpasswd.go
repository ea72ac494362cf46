// Package htpasswd checks names and passwords against lists in the format of htpasswd, the tool
// of Apache httpd: lines NAME:HASH. Package requests uses it for routes that ask for a
// password.
//
// Checking a password can take a second of a processor. Therefore a Checker lets few checks run at
// a time, shares their turns between namespaces, lists and clients (turns.go), and each list
// remembers passwords that were right.
package htpasswd

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // users have such lists
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	// maxPassword is how many bytes a password may have. The time of a check grows with it.
	maxPassword = 256
	// maxCost is the highest cost of bcrypt that is accepted: about a second on a small host.
	maxCost = 14
	// maxKnown is how many right passwords a list remembers.
	maxKnown = 1024
	// patience is how long a check waits for its turn.
	patience = 5 * time.Second
)

// ErrBusy says that too many passwords are being checked.
var ErrBusy = errors.New("too many passwords are being checked: try again later")

// Checker limits how many passwords are checked at a time. It may be used by many goroutines.
type Checker struct {
	turns turns
	// secret keys the hashes of right passwords.
	secret [32]byte
}

// NewChecker returns a Checker that uses half of the processors at most.
func NewChecker() *Checker {
	c := &Checker{turns: turns{free: max(1, runtime.GOMAXPROCS(0)/2)}}
	_, _ = rand.Read(c.secret[:]) // it never fails
	return c
}

// Users is a list of users.
type Users struct {
	checker *Checker
	// namespace and name say whose list it is.
	namespace, name string
	hashes          map[string]string
	// decoy is checked in the place of the hash of an unknown user, so that the time does not
	// tell which users there are.
	decoy string

	mu    sync.Mutex
	known map[[sha256.Size]byte]struct{}
}

// Parse returns the users of a list that a namespace has under a name. Users with a hash of an unknown
// kind are left out: no password is theirs. Of two lines with the same name, the first one counts.
func (c *Checker) Parse(namespace, name, list string) *Users {
	u := &Users{checker: c, namespace: namespace, name: name, hashes: map[string]string{}, known: map[[sha256.Size]byte]struct{}{}}
	for line := range strings.Lines(list) {
		name, hash, is := strings.Cut(strings.TrimSpace(line), ":")
		// Some tools append more fields.
		hash, _, _ = strings.Cut(hash, ":")
		if !is || name == "" || strings.HasPrefix(name, "#") || !supported(hash) {
			continue
		}
		if _, twice := u.hashes[name]; !twice {
			u.hashes[name] = hash
		}
		if u.decoy == "" {
			u.decoy = hash
		}
	}
	return u
}

// supported tells whether a hash is of a kind that can be checked.
func supported(hash string) bool {
	switch {
	case strings.HasPrefix(hash, "{SHA}"):
		sum, err := base64.StdEncoding.DecodeString(hash[len("{SHA}"):])
		return err == nil && len(sum) == sha1.Size
	case strings.HasPrefix(hash, apr1Prefix):
		salt, sum, is := strings.Cut(hash[len(apr1Prefix):], "$")
		return is && len(salt) <= apr1MaxSalt && len(sum) == apr1Length
	case strings.HasPrefix(hash, "$2"):
		cost, err := bcrypt.Cost([]byte(hash))
		return err == nil && cost <= maxCost
	}
	return false
}

// Check tells whether a user has a password. client says who asks, such as an address: checks of
// different clients take turns. Check returns ErrBusy if it gets no turn in time, and the error of ctx
// if that ends before.
func (u *Users) Check(ctx context.Context, client, name, password string) (bool, error) {
	hash, exists := u.hashes[name]
	if !exists {
		hash = u.decoy
	}
	if hash == "" || len(password) > maxPassword {
		return false, nil
	}
	key := u.key(hash, name, password)
	if exists && u.knows(key) {
		return true, nil
	}
	if !strings.HasPrefix(hash, "{SHA}") {
		if err := u.checker.turns.take(ctx, place{u.namespace, u.name, client}); err != nil {
			return false, err
		}
		defer u.checker.turns.give()
	}
	if !matches(hash, password) || !exists {
		return false, nil
	}
	u.remember(key)
	return true, nil
}

func (u *Users) key(hash, name, password string) (key [sha256.Size]byte) {
	mac := hmac.New(sha256.New, u.checker.secret[:])
	for _, part := range []string{hash, name, password} {
		sum := sha256.Sum256([]byte(part))
		mac.Write(sum[:])
	}
	mac.Sum(key[:0])
	return key
}

func (u *Users) knows(key [sha256.Size]byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, is := u.known[key]
	return is
}

func (u *Users) remember(key [sha256.Size]byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.known) >= maxKnown {
		clear(u.known)
	}
	u.known[key] = struct{}{}
}

// matches tells whether a password has a hash.
func matches(hash, password string) bool {
	switch {
	case strings.HasPrefix(hash, "{SHA}"):
		sum := sha1.Sum([]byte(password)) //nolint:gosec // users have such lists
		return equal(hash[len("{SHA}"):], base64.StdEncoding.EncodeToString(sum[:]))
	case strings.HasPrefix(hash, apr1Prefix):
		salt, sum, _ := strings.Cut(hash[len(apr1Prefix):], "$")
		return equal(sum, apr1(password, salt))
	}
	return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
