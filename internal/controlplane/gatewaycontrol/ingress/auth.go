package ingress

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// maxUsers is how many lines of htpasswd a Secret may have, and maxCost is the highest cost of
// bcrypt in it. A password of cost 12 takes a Raspberry Pi about a second, and each client may
// ask for it.
const (
	maxUsers = 1000
	maxCost  = 12
)

// maxRealm is how long the realm may be.
const maxRealm = 128

// readAuth reads the Secret with the names and passwords of an Ingress.
func (c *compiler) readAuth(e *entry, name string) (*routing.BasicAuth, error) {
	if name == "" {
		return nil, errors.New("it is empty: give it the name of a Secret")
	}
	c.out.Secrets[types.NamespacedName{Namespace: e.Namespace, Name: name}] = true
	secret := c.in.Secret(e.Namespace, name)
	if secret == nil {
		return nil, fmt.Errorf("the Secret %q does not exist: create it with `htpasswd -nB USER > auth` and "+
			"`kubectl create secret generic -n %s %s --from-file=auth`", name, e.Namespace, name)
	}
	text, found := secret.Data["auth"]
	if !found {
		text, found = secret.Data["users"]
	}
	if !found {
		return nil, fmt.Errorf("the Secret %q has no key auth", name)
	}
	users, err := parseUsers(string(text))
	if err != nil {
		return nil, fmt.Errorf("the key auth of the Secret %q: %w", name, err)
	}
	return &routing.BasicAuth{Realm: "", Users: users}, nil
}

// parseUsers returns the lines of a htpasswd file without comments. It fails if a line cannot
// be used. The error has no hash in it.
func parseUsers(text string) (string, error) {
	var users []string
	for number, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, found := strings.Cut(line, ":")
		if !found || name == "" {
			return "", fmt.Errorf("line %d is not NAME:HASH", number+1)
		}
		if err := checkHash(hash); err != nil {
			return "", fmt.Errorf("line %d: %w", number+1, err)
		}
		if users = append(users, line); len(users) > maxUsers {
			return "", fmt.Errorf("it has more than %d users", maxUsers)
		}
	}
	if len(users) == 0 {
		return "", errors.New("it has no user")
	}
	return strings.Join(users, "\n"), nil
}

// checkHash tells whether nodes can compare a password with a hash, and in bounded time.
func checkHash(hash string) error {
	switch {
	case strings.HasPrefix(hash, "$2"):
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil {
			return errors.New("this is not a hash of bcrypt")
		}
		if cost > maxCost {
			return fmt.Errorf("the cost of bcrypt is %d, and may be %d at most: use `htpasswd -B -C 10`", cost, maxCost)
		}
		return nil
	case strings.HasPrefix(hash, "{SHA}"), strings.HasPrefix(hash, "$apr1$"):
		return nil
	}
	return errors.New("the hash must be of bcrypt ($2y$), SHA-1 ({SHA}) or apr1 ($apr1$): use `htpasswd -B`")
}

// checkRealm tells whether a realm can be in a header.
func checkRealm(realm string) error {
	if len(realm) > maxRealm {
		return fmt.Errorf("it is longer than %d bytes", maxRealm)
	}
	for _, r := range realm {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return fmt.Errorf("%q is not allowed in it: use letters, digits and spaces", r)
		}
	}
	return nil
}
