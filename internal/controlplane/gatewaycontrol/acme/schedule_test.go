package acme

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
	"k8s.io/apimachinery/pkg/types"
)

// TestPauses counts the attempts of a name that never succeeds.
func TestPauses(t *testing.T) {
	attempts, last := 0, time.Duration(0)
	for at := time.Duration(0); at < time.Hour; at += pauseAfter(attempts) {
		attempts++
	}
	if attempts > 4 {
		t.Errorf("%d attempts in the first hour, want at most 4", attempts)
	}
	for failures := 1; failures < 100; failures++ {
		pause := pauseAfter(failures)
		if pause < last || pause < firstPause || pause > lastPause {
			t.Errorf("after %d failures the pause is %s, and was %s", failures, pause, last)
		}
		last = pause
	}
}

// TestLimit has an authority that wants no requests for some time.
func TestLimit(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		after       string
		least, most time.Duration
	}{
		{"", limitPause, limitPause * 11 / 10},
		{"60", limitPause, limitPause * 11 / 10},
		{"7200", 2 * time.Hour, 2 * time.Hour * 11 / 10},
		{"99999999", longestLimit, longestLimit * 11 / 10},
		{"-5", limitPause, limitPause * 11 / 10},
	} {
		m := New(Config{})
		m.now = func() time.Time { return now }
		c := &certificate{secret: types.NamespacedName{Namespace: "shop", Name: "tls"}, hosts: []string{"a", "b"}}
		err := fmt.Errorf("make an order: %w", &acme.Error{ProblemType: problemPrefix + "rateLimited", Header: http.Header{"Retry-After": {test.after}}})
		pause := m.failed(c, err).Sub(now)
		if pause < test.least || pause > test.most || m.notBefore(c, now).Sub(now) != pause {
			t.Errorf("Retry-After %q: the pause is %s, want %s to %s", test.after, pause, test.least, test.most)
		}
		c.hosts = []string{"b", "c"}
		if m.failures(c) != 1 || !m.notBefore(c, now).After(now) {
			t.Error("another certificate with the same host starts at once")
		}
		if c.secret.Namespace = "bank"; m.notBefore(c, now).After(now) {
			t.Error("the failures of one tenant delay another one")
		}
	}
}

func TestRenewalTime(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	different := map[time.Time]bool{}
	for i := range 50 {
		leaf := &x509.Certificate{NotBefore: start, NotAfter: start.Add(90 * 24 * time.Hour), Raw: []byte{byte(i)}}
		at := renewal(leaf)
		if days := at.Sub(start).Hours() / 24; days < 60 || days > 64.5 {
			t.Errorf("a certificate of 90 days is renewed after %f days", days)
		}
		if !at.Equal(renewal(leaf)) {
			t.Error("the time of renewal changes")
		}
		different[at] = true
	}
	if len(different) < 40 {
		t.Errorf("50 certificates are renewed at %d times", len(different))
	}
}

// TestSlots has attempts that run. Those with other authorities do not take the place of those
// with the cluster's, and no namespace takes all places.
func TestSlots(t *testing.T) {
	m := New(Config{})
	try := func(namespace, secret, directory string) bool {
		c := &certificate{secret: types.NamespacedName{Namespace: namespace, Name: secret}, account: account{directory: directory}}
		if !m.free(c) {
			return false
		}
		m.running[c.secret] = c
		return true
	}
	for _, step := range []struct {
		namespace, directory string
		want                 bool
	}{
		{"a", "https://slow.example.com", true}, {"a", "https://slow.example.com", true}, {"b", "https://slow.example.com", false},
		{"a", LetsEncrypt, false}, {"b", LetsEncrypt, true}, {"b", LetsEncrypt, true}, {"b", LetsEncrypt, false},
		{"c", LetsEncrypt, true}, {"d", LetsEncrypt, true}, {"e", LetsEncrypt, false},
	} {
		if got := try(step.namespace, fmt.Sprint(len(m.running)), step.directory); got != step.want {
			t.Errorf("an attempt of %s with %s starts: %t, want %t", step.namespace, step.directory, got, step.want)
		}
	}
}

// TestBudget has a namespace that makes attempts all the time.
func TestBudget(t *testing.T) {
	m := New(Config{})
	made := 0
	for range 10 * budget {
		if m.affords("a") {
			made++
		}
	}
	if made < budget || made > budget+1 || !m.affords("b") {
		t.Errorf("one namespace made %d attempts, want %d", made, budget)
	}
}

func TestAddresses(t *testing.T) {
	m := New(Config{Refused: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/56")}})
	for address, want := range map[string]bool{
		"127.0.0.1:443": false, "[::1]:443": false, "0.0.0.0:443": false, "[::]:443": false, "169.254.169.254:443": false,
		"[fe80::1%eth0]:443": false, "[::ffff:127.0.0.1]:443": false, "10.42.1.2:443": false, "[::ffff:10.42.1.2]:443": false,
		"[fd00:42::5]:443": false, "[fd00:42::5%eth0]:443": false, "224.0.0.1:443": false, "nonsense": false,
		"192.0.2.1:443": true, "192.168.1.2:443": true, "[2001:db8::1]:443": true,
	} {
		err := m.control(t.Context(), "tcp", address, nil)
		if got := err == nil; got != want {
			t.Errorf("connecting to %s is allowed: %t, want %t", address, got, want)
		}
		if err != nil && address != "nonsense" && !errors.Is(err, errAddress) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestWay has requests that an authority must not cause.
func TestWay(t *testing.T) {
	w := New(Config{}).newWay(LetsEncrypt)
	defer w.close()
	if _, err := w.client().Get("http://example.com/"); err == nil {
		t.Error("a request without TLS is allowed")
	}
	w.left.Store(0)
	if _, err := w.client().Get("https://example.com/"); err == nil {
		t.Error("there is no limit of requests")
	}
}
