package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"unicode"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// A short token is the secret alone, as k3s also takes it. It pins no authority: a machine
// that joins with it trusts the first server that answers, and so gives it the secret. The
// machine keeps the hash of that server's authority before it sends the secret, and trusts no
// other one from then on, also after a restart. Once the machine has joined, it has the
// authorities of its cluster, which take the place of that hash.

// parseConfigured reads the token with which a machine joins. A short token is taken only if
// short is set. It has no Hash, and no User.
func parseConfigured(text string, short bool) (Token, error) {
	token, err := ParseToken(text)
	secret := strings.TrimSpace(text)
	switch {
	case err == nil || !isShort(secret):
		return token, err
	case !short:
		return Token{}, fmt.Errorf("%w. To join with the secret alone, set insecure-short-token: true. The first server that answers then gets the secret, and this host trusts it", err)
	case strings.ContainsFunc(secret, unicode.IsSpace):
		return Token{}, errors.New("the token has white space in it: correct it")
	}
	return Token{Secret: secret}, nil
}

// isShort tells whether a text is a short token, and not a whole one that is damaged.
func isShort(text string) bool { return text != "" && !strings.HasPrefix(text, tokenPrefix) }

// AdmitsServers tells whether servers may be able to join with a configured token: with the
// server's own token, and with a short one, which does not tell whose it is.
func AdmitsServers(text string) (admits, short bool) {
	token, err := ParseToken(text)
	if secret := strings.TrimSpace(text); err != nil && isShort(secret) {
		return !IsBootstrapSecret(secret), true
	}
	return token.User == ServerUser, false
}

// meanings returns the tokens that a node's token may be. A short one does not tell whose
// secret it is.
func (t Token) meanings() []Token {
	if t.Hash != "" {
		return []Token{t}
	}
	tokens := []Token{{User: NodeUser, Secret: t.Secret}, {User: ServerUser, Secret: t.Secret}}
	if IsBootstrapSecret(t.Secret) {
		tokens = append([]Token{t}, tokens...)
	}
	return tokens
}

// pins returns the hashes of the authorities to trust with a short token: those that are
// kept in PEM in a file of a machine that has joined, or else the one that the machine
// trusted first. If there is neither, it trusts the server that answers. kept is the file
// that has the hashes.
func (c *client) pins(ctx context.Context, dir datadir.Dir, authorities string, log *logrus.Entry) (hashes []string, kept string, err error) {
	for _, file := range []string{authorities, dir.TrustedCA()} {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("read the authority of an earlier start: %w", err)
		}
		if file == authorities {
			hashes, err = pki.CAHashes(text)
			return hashes, file, err
		}
		return []string{strings.TrimSpace(string(text))}, file, nil
	}
	var authority []byte
	if err := c.call(ctx, http.MethodGet, CACertsPath, nil, nil, &authority); err != nil {
		return nil, "", err
	}
	hash, err := pki.CAHash(authority)
	if err != nil {
		return nil, "", c.noServer()
	}
	log.Warnf("The token is short, so this host trusts the server at %s without proof. The hash of its certificate authority is %s: "+
		"compare it with server/token in the server's data directory, where it follows %s", c.server, hash, tokenPrefix)
	return []string{hash}, dir.TrustedCA(), datadir.WriteFile(dir.TrustedCA(), []byte(hash+"\n"), 0o600)
}

// forgetTrusted removes what pins has kept, when the machine has the authorities of its
// cluster.
func forgetTrusted(dir datadir.Dir) error {
	if err := os.Remove(dir.TrustedCA()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the authority of the first start: %w", err)
	}
	return nil
}
