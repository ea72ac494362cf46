package htpasswd

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// The hash with bcrypt is a test vector of crypt_blowfish 1.3. `openssl passwd -apr1` has
// written those of apr1.
const list = `# users of the test
bcrypt:$2y$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW
sha:{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=
apr1:$apr1$abcdefgh$EfExgQSMBXioDhIVk8IOb1
empty:$apr1$r31$VhYBNuSclDwcMVhdpOx.I0
long:$apr1$12345678$ZDDmXjzldw/dowjQ/oBt5/

plain:secret
crypt:rqXexS6ZhobKA
costly:$2y$20$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW
sha:{SHA}AAAAAAAAAAAAAAAAAAAAAAAAAAA=
more:$apr1$abcdefgh$EfExgQSMBXioDhIVk8IOb1:another field
`

func TestCheck(t *testing.T) {
	users := NewChecker().Parse("a", "b", list)
	for _, test := range []struct {
		name, password string
		want           bool
	}{
		{"bcrypt", "U*U", true},
		{"bcrypt", "U*V", false},
		{"sha", "myPassword", true},
		{"sha", "mypassword", false},
		{"sha", "", false},
		{"apr1", "myPassword", true},
		{"apr1", "myPassword ", false},
		{"empty", "", true},
		{"long", "a very long password of more than sixteen bytes", true},
		{"more", "myPassword", true},
		{"plain", "secret", false},
		{"crypt", "secret", false},
		{"costly", "U*U", false},
		{"nobody", "U*U", false},
		{"", "", false},
		{"# users of the test", "", false},
		{"sha", strings.Repeat("a", maxPassword+1), false},
	} {
		for range 2 {
			if got, err := users.Check(t.Context(), "c", test.name, test.password); err != nil || got != test.want {
				t.Errorf("%s with %q: got %t, %v", test.name, test.password, got, err)
			}
		}
	}
}

func TestNoUsers(t *testing.T) {
	if is, err := NewChecker().Parse("a", "b", "").Check(t.Context(), "c", "", ""); is || err != nil {
		t.Errorf("an empty list admits: %t, %v", is, err)
	}
}

// TestTurns sees that checks wait for their turn, except those of passwords that are known.
func TestTurns(t *testing.T) {
	checker := NewChecker()
	users := checker.Parse("a", "b", list)
	if is, err := users.Check(t.Context(), "c", "apr1", "myPassword"); !is || err != nil {
		t.Fatal(is, err)
	}
	checker.turns.free = 0
	if is, err := users.Check(t.Context(), "c", "apr1", "myPassword"); !is || err != nil {
		t.Errorf("a known password waits: %t, %v", is, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"bcrypt", "nobody"} {
		if is, err := users.Check(ended, "c", name, "U*U"); is || !errors.Is(err, context.Canceled) {
			t.Errorf("%s does not wait: %t, %v", name, is, err)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	users := NewChecker().Parse("a", "b", list)
	for i := range 3 * maxKnown {
		users.remember([32]byte{byte(i), byte(i >> 8)})
	}
	if len(users.known) > maxKnown {
		t.Errorf("%d passwords are remembered", len(users.known))
	}
}
