package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kedge-dev/kedge/internal/datadir"
)

// A join token is K10HASH::server:SECRET, the format k3s users know. HASH pins
// the cluster's authority, so that a node can join over a network it does not
// trust.
const (
	tokenPrefix = "K10"
	tokenUser   = "server"
)

// CAHash returns what a join token says of the server authority: the SHA-256,
// in hexadecimal, of the DER of the root, the last certificate in caPEM. It is
// what `openssl x509 -fingerprint -sha256` prints, and stays when an
// intermediate authority is replaced.
func CAHash(caPEM []byte) (string, error) {
	certs, err := parseCertificates(caPEM)
	if err != nil {
		return "", fmt.Errorf("hash certificate authority: %w", err)
	}
	sum := sha256.Sum256(certs[len(certs)-1].Raw)
	return hex.EncodeToString(sum[:]), nil
}

// EnsureToken returns the join token of the cluster with the server authority
// caPEM, and keeps it in the data directory. Its secret is the configured one,
// if there is one; else the kept one; else a new one. configured may also be a
// whole token, which must then be of this cluster.
func EnsureToken(dir datadir.Dir, configured string, caPEM []byte) (string, error) {
	hash, err := CAHash(caPEM)
	if err != nil {
		return "", err
	}
	path := dir.ServerToken()
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read join token: %w", err)
	}
	var secret string
	switch {
	case configured != "":
		if secret, err = tokenSecret(configured, hash); err != nil {
			return "", fmt.Errorf("read configured token: %w", err)
		}
	case kept != nil:
		if secret, err = tokenSecret(strings.TrimSpace(string(kept)), ""); err != nil {
			return "", fmt.Errorf("read join token %s: %w: remove the file to have a new token made", path, err)
		}
	default:
		random := make([]byte, 16)
		// Never fails: crypto/rand ends the process rather.
		_, _ = rand.Read(random)
		secret = hex.EncodeToString(random)
	}
	token := tokenPrefix + hash + "::" + tokenUser + ":" + secret
	if string(kept) == token+"\n" {
		return token, nil
	}
	if err := datadir.WriteFile(path, []byte(token+"\n"), keyMode); err != nil {
		return "", fmt.Errorf("keep join token: %w", err)
	}
	return token, nil
}

// tokenSecret returns the secret in a token, whole or bare. A whole one must
// pin hash, unless hash is empty.
func tokenSecret(token, hash string) (string, error) {
	secret := token
	if pin, credentials, whole := strings.Cut(token, "::"); whole && strings.HasPrefix(pin, tokenPrefix) {
		user, password, _ := strings.Cut(credentials, ":")
		switch {
		case user != tokenUser:
			return "", fmt.Errorf("it is not a server's token: after :: comes %s:SECRET", tokenUser)
		case hash != "" && pin != tokenPrefix+hash:
			return "", errors.New("it is the token of another cluster: its hash is not that of this cluster's authority")
		}
		secret = password
	}
	if secret == "" || strings.ContainsAny(secret, " \t\r\n") {
		return "", errors.New("it has no secret in it")
	}
	return secret, nil
}
