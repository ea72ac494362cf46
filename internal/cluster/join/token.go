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
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// The users in tokens: ServerUser in the cluster's own token, NodeUser in the token for
// agents only.
const (
	ServerUser = "server"
	NodeUser   = "node"
)

// Token lets a node join. Its text has the form of k3s's tokens: K10HASH::USER:SECRET,
// or K10HASH::ID.SECRET for a bootstrap token, which may expire.
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

// ParseToken reads a join token. The text must be the whole token, with the hash.
func ParseToken(text string) (Token, error) {
	parts := wholeToken.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Token{}, errors.New("the token does not begin with the hash of the cluster's certificate authority, and without it " +
			"a node cannot tell its cluster from an impostor: give the whole token, K10...::..., " +
			"as it is in /var/lib/kedge/server/token on the server (server/token in its data directory) or as `kedge token create` prints it there")
	}
	token := Token{Hash: parts[1]}
	user, secret, found := strings.Cut(parts[2], ":")
	switch {
	case bootstrapSecret.MatchString(parts[2]):
		token.Secret = parts[2]
	case found && (user == ServerUser || user == NodeUser) && secret != "":
		token.User, token.Secret = user, secret
	default:
		return Token{}, errors.New("the token is cut off or changed: after :: it must have server:SECRET, node:SECRET or ID.SECRET")
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

// EnsureToken returns the join token of the cluster with the server authority caPEM, and
// keeps it in the data directory. The secret is the configured one, or else the kept one,
// or else a new one. configured may be a whole token; EnsureToken fails if that is of
// another cluster.
func EnsureToken(dir datadir.Dir, configured string, caPEM []byte) (string, error) {
	hash, err := pki.CAHash(caPEM)
	if err != nil {
		return "", err
	}
	path := dir.ServerToken()
	kept, err := datadir.ReadText(path)
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
			return "", fmt.Errorf("read join token %s: %w: remove the file, and kedge makes a new token", path, err)
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

// LinkNodeToken makes the link with k3s's name to the file with the join token. Programs
// that were written for k3s read the token there.
func LinkNodeToken(dir datadir.Dir) error {
	if err := datadir.Link(dir.NodeToken(), filepath.Base(dir.ServerToken())); err != nil {
		return fmt.Errorf("link join token: %w", err)
	}
	return nil
}

// EnsureAgentToken keeps the configured token for agents in the data directory. If none
// is configured, it removes the kept one.
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

// RotateToken replaces the secret of the kept join token of a single server by that of a
// given token, or by a random one if given is empty, and returns the whole new token. A
// running server accepts it at once.
func RotateToken(dir datadir.Dir, given string) (string, error) {
	token, err := keptToken(dir)
	if err != nil {
		return "", err
	}
	if token, err = token.with(given); err != nil {
		return "", err
	}
	return token.String(), keepToken(dir.ServerToken(), token.String())
}

// ErrToken marks a text that cannot be the token of the cluster's servers.
var ErrToken = errors.New("the new token cannot be used")

// with returns a server's token with the secret of a given token, which may be the secret
// alone, or with a random one if given is empty. What a configuration may not have as its
// token is an ErrToken.
func (t Token) with(given string) (Token, error) {
	if given == "" {
		t.Secret = newSecret()
		return t, nil
	}
	secret, err := secretOf(given, ServerUser, func(hash string) bool { return hash == t.Hash })
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrToken, err)
	}
	if secret == t.Secret {
		return Token{}, fmt.Errorf("%w: it is the present one. Give another one, or none for a random one", ErrToken)
	}
	t.Secret = secret
	return t, nil
}

// CheckToken fails if a token, which may be the secret alone, is not the servers' token as
// it is kept now.
func CheckToken(dir datadir.Dir, given string) error {
	kept, err := keptToken(dir)
	if err != nil {
		return err
	}
	secret, err := secretOf(given, ServerUser, func(hash string) bool { return hash == kept.Hash })
	if err != nil {
		return err
	}
	if !CheckSecret(dir, ServerUser, secret) {
		return fmt.Errorf("it is not the token of this cluster's servers, which is in %s", dir.ServerToken())
	}
	return nil
}

// TokenFor returns the kept join token with the hash of the authorities caPEM.
func TokenFor(dir datadir.Dir, caPEM []byte) (string, error) {
	token, err := keptToken(dir)
	if err != nil {
		return "", err
	}
	token.Hash, err = pki.CAHash(caPEM)
	return token.String(), err
}

// CheckPins fails if a configured token pins another authority than the kept token,
// which already pins the new one.
func CheckPins(dir datadir.Dir, configured ...string) error {
	kept, err := keptToken(dir)
	if err != nil {
		return err
	}
	for _, token := range configured {
		if pin, _, whole := strings.Cut(token, "::"); whole && strings.HasPrefix(pin, tokenPrefix) && pin != tokenPrefix+kept.Hash {
			return fmt.Errorf("the configuration has a token with the hash of the old certificate authority, which the next start would refuse: keep only the secret of the token, which follows ::server: or ::node: in it, or use the token in %s", dir.ServerToken())
		}
	}
	return nil
}

// CheckSecret tells whether secret is the secret of the user's token, as the token is
// kept now.
func CheckSecret(dir datadir.Dir, user, secret string) bool {
	path := map[string]string{ServerUser: dir.ServerToken(), NodeUser: dir.AgentToken()}[user]
	if path == "" {
		return false
	}
	kept, err := datadir.ReadText(path)
	if err != nil {
		return false
	}
	token, err := ParseToken(string(kept))
	return err == nil && token.User == user && subtle.ConstantTimeCompare([]byte(token.Secret), []byte(secret)) == 1
}

// NewcomersGroup is the group of the bootstrap tokens (ID.SECRET) with which nodes can
// join. Other bootstrap tokens are not in it.
const NewcomersGroup = "system:bootstrappers:kedge:nodes"

// IsBootstrapSecret tells whether a text is of the form ID.SECRET.
func IsBootstrapSecret(text string) bool { return bootstrapSecret.MatchString(text) }

// newSecret returns 16 random bytes in hexadecimal.
func newSecret() string {
	random := make([]byte, 16)
	// crypto/rand never returns an error: it ends the process instead.
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}

func keepToken(path, token string) error {
	if err := datadir.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep join token: %w", err)
	}
	return nil
}

// ServerSecret returns the secret in a server's token. token may be the whole token or
// the secret alone.
func ServerSecret(token string) (string, error) {
	return tokenSecret(strings.TrimSpace(token), ServerUser, nil)
}

// tokenSecret returns the secret in a user's token, which may be the whole token or the
// secret alone. A whole token must pin one of the authorities in caPEM, unless caPEM is
// nil.
func tokenSecret(token, user string, caPEM []byte) (string, error) {
	return secretOf(token, user, func(hash string) bool { return caPEM == nil || pki.FindCA(caPEM, hash) != nil })
}

// secretOf is tokenSecret, with a function that tells whether a hash is one of the cluster's.
func secretOf(token, user string, ours func(hash string) bool) (string, error) {
	secret := token
	if pin, credentials, whole := strings.Cut(token, "::"); whole && strings.HasPrefix(pin, tokenPrefix) {
		of, password, _ := strings.Cut(credentials, ":")
		switch {
		case of != user:
			return "", fmt.Errorf("it is another kind of token: use one with ::%s:SECRET in it", user)
		case !ours(strings.TrimPrefix(pin, tokenPrefix)):
			return "", fmt.Errorf("it is the token of another cluster: its hash is not the hash of this cluster's certificate authority. "+
				"If that authority was replaced (`kedge certificate rotate-ca`), keep only the secret of the token, which follows ::%s: in it", user)
		}
		secret = password
	}
	// Everything that Unicode calls white space, because ParseToken would cut it off.
	if secret == "" || strings.ContainsFunc(secret, unicode.IsSpace) {
		return "", errors.New("it has no secret, or one with white space in it")
	}
	return secret, nil
}
