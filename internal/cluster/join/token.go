package join

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"unicode"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Who shows a token: ServerUser the cluster's own token, NodeUser the one for
// agents only.
const (
	ServerUser = "server"
	NodeUser   = "node"
)

// Token lets a node join. Its text is the one k3s users know, K10HASH::
// and then USER:SECRET, or ID.SECRET of a token that ends by itself.
type Token struct {
	// Hash pins the cluster's authority (pki.CAHash), so that a node can join
	// over a network it does not trust.
	Hash string
	// User is ServerUser or NodeUser, or empty for ID.SECRET.
	User   string
	Secret string
}

const tokenPrefix = "K10"

var (
	wholeToken = regexp.MustCompile(`^K10([0-9a-f]{64})::(\S+)$`)
	// bootstrapSecret is k8s.io/cluster-bootstrap/token/api.BootstrapTokenPattern.
	//upstream:relies-on k8s.io/cluster-bootstrap/token/api/types.go BootstrapTokenPattern
	bootstrapSecret = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
)

// ParseToken reads a token for joining.
func ParseToken(text string) (Token, error) {
	parts := wholeToken.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Token{}, errors.New("the token does not begin with the hash of the cluster's authority, without which " +
			"a node cannot tell its cluster from an impostor: give the whole token, K10...::..., " +
			"as it is in server/token in the server's data directory or as `kedge token create` prints it there")
	}
	token := Token{Hash: parts[1]}
	user, secret, found := strings.Cut(parts[2], ":")
	switch {
	case bootstrapSecret.MatchString(parts[2]):
		token.Secret = parts[2]
	case found && (user == ServerUser || user == NodeUser) && secret != "":
		token.User, token.Secret = user, secret
	default:
		return Token{}, errors.New("the token is cut off or changed: after :: it has server:SECRET, node:SECRET or ID.SECRET")
	}
	return token, nil
}

// String returns the token's text.
func (t Token) String() string {
	credentials := t.Secret
	if t.User != "" {
		credentials = t.User + ":" + t.Secret
	}
	return tokenPrefix + t.Hash + "::" + credentials
}

// Authorize puts the token's secret into a request.
func (t Token) Authorize(r *http.Request) {
	if t.User != "" {
		r.SetBasicAuth(t.User, t.Secret)
	} else {
		r.Header.Set("Authorization", "Bearer "+t.Secret)
	}
}

// EnsureToken returns the join token of the cluster with the server authority
// caPEM, and keeps it in the data directory. Its secret is the configured one,
// if there is one; else the kept one; else a new one. configured may also be a
// whole token, which must then be of this cluster.
func EnsureToken(dir datadir.Dir, configured string, caPEM []byte) (string, error) {
	hash, err := pki.CAHash(caPEM)
	if err != nil {
		return "", err
	}
	path := dir.ServerToken()
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read join token: %w", err)
	}
	var secret string
	switch {
	case configured != "":
		if secret, err = tokenSecret(configured, ServerUser, caPEM); err != nil {
			return "", fmt.Errorf("read configured token: %w", err)
		}
	case kept != nil:
		if secret, err = tokenSecret(strings.TrimSpace(string(kept)), ServerUser, nil); err != nil {
			return "", fmt.Errorf("read join token %s: %w: remove the file to have a new token made", path, err)
		}
	default:
		secret = newSecret()
	}
	token := Token{hash, ServerUser, secret}.String()
	if string(kept) == token+"\n" {
		return token, nil
	}
	return token, keepToken(path, token)
}

// EnsureAgentToken keeps the configured token for agents only, and removes an
// earlier one if none is configured.
func EnsureAgentToken(dir datadir.Dir, configured string, caPEM []byte) error {
	if configured == "" {
		if err := os.Remove(dir.AgentToken()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove agent token: %w", err)
		}
		return nil
	}
	hash, err := pki.CAHash(caPEM)
	if err != nil {
		return err
	}
	secret, err := tokenSecret(configured, NodeUser, caPEM)
	if err != nil {
		return fmt.Errorf("read configured agent token: %w", err)
	}
	return keepToken(dir.AgentToken(), Token{hash, NodeUser, secret}.String())
}

// RotateToken replaces the secret of the kept join token of a server alone, and
// returns the new token. A running server takes it at once.
func RotateToken(dir datadir.Dir) (string, error) {
	token, err := keptToken(dir)
	if err != nil {
		return "", err
	}
	token.Secret = newSecret()
	return token.String(), keepToken(dir.ServerToken(), token.String())
}

// TokenFor is the kept join token, as it is with the authorities caPEM.
func TokenFor(dir datadir.Dir, caPEM []byte) (string, error) {
	token, err := keptToken(dir)
	if err != nil {
		return "", err
	}
	token.Hash, err = pki.CAHash(caPEM)
	return token.String(), err
}

// CheckPins refuses configured tokens that pin another authority than the kept token
// does, to which that is new.
func CheckPins(dir datadir.Dir, configured ...string) error {
	kept, err := keptToken(dir)
	if err != nil {
		return err
	}
	for _, token := range configured {
		if pin, _, whole := strings.Cut(token, "::"); whole && strings.HasPrefix(pin, tokenPrefix) && pin != tokenPrefix+kept.Hash {
			return fmt.Errorf("the configuration has a token of the old authority, which the next start would refuse: write what is after :: only, or the one in %s", dir.ServerToken())
		}
	}
	return nil
}

// CheckSecret tells whether secret is that of the user's token, as it is kept
// now.
func CheckSecret(dir datadir.Dir, user, secret string) bool {
	path := map[string]string{ServerUser: dir.ServerToken(), NodeUser: dir.AgentToken()}[user]
	if path == "" {
		return false
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	token, err := ParseToken(string(kept))
	return err == nil && token.User == user && subtle.ConstantTimeCompare([]byte(token.Secret), []byte(secret)) == 1
}

// NewcomersGroup is the group of bootstrap tokens (ID.SECRET) that are for
// joining: not every such token is.
const NewcomersGroup = "system:bootstrappers:kedge:nodes"

// IsBootstrapSecret tells whether a text is of the form ID.SECRET.
func IsBootstrapSecret(text string) bool { return bootstrapSecret.MatchString(text) }

// newSecret returns 16 random bytes in hexadecimal.
func newSecret() string {
	random := make([]byte, 16)
	// Never fails: crypto/rand ends the process rather.
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}

func keepToken(path, token string) error {
	if err := datadir.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep join token: %w", err)
	}
	return nil
}

// ServerSecret returns the secret in a server's token, whole or bare.
func ServerSecret(token string) (string, error) {
	return tokenSecret(strings.TrimSpace(token), ServerUser, nil)
}

// tokenSecret returns the secret in a user's token, whole or bare. A whole one
// must pin one of the authorities in caPEM, unless that is nil.
func tokenSecret(token, user string, caPEM []byte) (string, error) {
	secret := token
	if pin, credentials, whole := strings.Cut(token, "::"); whole && strings.HasPrefix(pin, tokenPrefix) {
		of, password, _ := strings.Cut(credentials, ":")
		switch {
		case of != user:
			return "", fmt.Errorf("it is another kind of token: after :: comes %s:SECRET", user)
		case caPEM != nil && pki.FindCA(caPEM, strings.TrimPrefix(pin, tokenPrefix)) == nil:
			return "", errors.New("it is the token of another cluster: its hash is not that of this cluster's authority. " +
				"If that was replaced (`kedge certificate rotate-ca`), write what is after :: only")
		}
		secret = password
	}
	// All that Unicode calls white space: ParseToken would cut it off.
	if secret == "" || strings.ContainsFunc(secret, unicode.IsSpace) {
		return "", errors.New("it has no secret, or one with white space in it")
	}
	return secret, nil
}
