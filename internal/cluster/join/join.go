// Package join brings nodes and servers into a cluster. It has the join tokens, the
// protocol between a joining machine and a server, and the joining side of it. Package
// agent calls Join and package server calls JoinServer, before any component starts.
// Package supervisor is the admitting side. Package cli makes tokens with it.
package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Waits between attempts to reach a server: each is twice the one before, from
// firstRetry up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// Config is what Join has to know.
type Config struct {
	// Server is HOST:PORT, for messages.
	Server string
	// Dial connects to Server, or to another server of the cluster.
	Dial Dial
	// Token is needed when the node joins for the first time, and after its
	// certificates expired.
	Token string
	// Name is the node's name. Resolve returns the whole description of the node,
	// which depends on the settings of the cluster.
	Name    string
	Resolve func(Settings) (host.Node, error)
	Dir     datadir.Dir
	// PasswordFile holds the node's password. Join makes the file if it is missing.
	PasswordFile string
	Clock        *pki.Clock
}

// Identity is what a node that has joined knows of itself and of the cluster.
type Identity struct {
	*pki.Node
	Host     host.Node
	Settings Settings

	cfg Config
	log *logrus.Entry
}

// Join makes this machine a node of the cluster: with the certificates of an
// earlier start, or else with the token. If no server can be reached, a node that has
// not joined before tries again until ctx ends. A node that has joined before starts
// with the settings that it knows. Join fails only for reasons that another attempt
// would not mend.
func Join(ctx context.Context, cfg Config) (*Identity, error) {
	i := &Identity{
		Node: pki.NewNode(cfg.Dir, cfg.Name, cfg.Clock),
		cfg:  cfg,
		log:  logrus.WithField("component", "join"),
	}
	why := i.Load()
	if why == nil && i.Ended() {
		why = errors.New("this node's certificates have expired")
	}
	if why == nil {
		if why = i.resume(ctx); why == nil {
			return i, nil
		}
		if !errors.Is(why, errUnauthorized) {
			return nil, why
		}
		why = errFormer
	}
	if cfg.Token == "" {
		return nil, fmt.Errorf("%w: give a join token with --token-file, or as KEDGE_TOKEN in /etc/kedge/kedge.env if kedge is a service; "+
			"`kedge token create` makes one on a server", why)
	}
	token, err := ParseToken(cfg.Token)
	if err != nil {
		return nil, err
	}
	if !errors.Is(why, pki.ErrNotJoined) {
		i.log.Warnf("Joining again: %v", why)
	}
	return i, retry(ctx, i.log, func() error { return i.join(ctx, token) })
}

// errFormer is the meaning of errUnauthorized for a node that shows certificates of an
// earlier start.
var errFormer = errors.New("the server no longer accepts this node's certificates: the node was deleted or revoked")

// retry calls do until it succeeds, fails with an error that is not retryable, or ctx
// ends. If the error names a time to wait, retry waits that long: a server names one
// while other servers join before this one.
func retry(ctx context.Context, log *logrus.Entry, do func() error) error {
	told := ""
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := do()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var temporary retryable
		if !errors.As(err, &temporary) {
			return err
		}
		if temporary.after > 0 {
			wait = temporary.after
		}
		if text := fmt.Sprintf("%v (next attempt in %s)", err, wait); text != told {
			log.Warn(text)
			told = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// join joins with a token. It sends nothing secret before the server has proved to be
// of the token's cluster.
func (i *Identity) join(ctx context.Context, token Token) error {
	// Not verified by TLS: the answer is the authority itself, whose hash is compared.
	unverified := i.client(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	defer unverified.close()
	authority, err := unverified.pinned(ctx, token.Hash)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	c := i.client(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: pki.APIName, Time: i.cfg.Clock.Now})
	defer c.close()
	if err := i.learn(ctx, c, token.Authorize); err != nil {
		return err
	}
	return i.certify(ctx, c, JoinPath, false, token.Authorize)
}

// pinned returns the server's authority that has the token's hash, or one of the known
// hashes. The caller must trust only that one: the program that answers may have added
// others.
func (c *client) pinned(ctx context.Context, hash string, known ...string) ([]byte, error) {
	var authority []byte
	if err := c.call(ctx, http.MethodGet, CACertsPath, nil, nil, &authority); err != nil {
		return nil, err
	}
	found, err := pki.CAHash(authority)
	if err != nil {
		return nil, fmt.Errorf("the program that answers at %s is not a kedge server that nodes can join: correct --server", c.server)
	}
	for _, hash := range append([]string{hash}, known...) {
		if pinned := pki.FindCA(authority, hash); pinned != nil {
			return pinned, nil
		}
	}
	return nil, &otherAuthorityError{c.server, found, hash}
}

// otherAuthorityError says that a server is not of the token's cluster.
type otherAuthorityError struct{ server, found, hash string }

func (e *otherAuthorityError) Error() string {
	return fmt.Sprintf("the server at %s is not of the token's cluster: its certificate authority has the hash %s, and the token has %s. "+
		"Correct --server or --token. If that cluster's certificate authorities were replaced (`kedge certificate rotate-ca`), use the new token, which is in server/token there. "+
		"If both are right, something on the way poses as the server", e.server, e.found, e.hash)
}

// resume starts with the certificates of an earlier start. If no server answers, it
// uses the settings that were kept then.
func (i *Identity) resume(ctx context.Context) error {
	c := i.client(i.TLS(pki.NodeUser(i.cfg.Name)))
	defer c.close()
	err := i.learn(ctx, c, nil)
	if err == nil && i.wantsRenewal() {
		err = i.certify(ctx, c, RenewPath, false, nil)
	}
	var temporary retryable
	if !errors.As(err, &temporary) {
		return err
	}
	i.log.Warnf("Starting with the cluster's settings of the last start: %v", err)
	text, err := os.ReadFile(i.cfg.Dir.ClusterSettings())
	if err != nil {
		return fmt.Errorf("read the cluster's settings of the last start: %w", err)
	}
	i.Settings = defaultSettings()
	if err := json.Unmarshal(text, &i.Settings); err != nil {
		return fmt.Errorf("read %s: %w", i.cfg.Dir.ClusterSettings(), err)
	}
	i.Host, err = i.cfg.Resolve(i.Settings)
	return err
}

func (i *Identity) client(config *tls.Config) *client {
	return newClient(i.cfg.Server, i.cfg.Dial, config, i.cfg.Clock.Now)
}

// learn asks the server for the cluster's settings, and keeps them.
func (i *Identity) learn(ctx context.Context, c *client, authorize func(*http.Request)) error {
	settings := defaultSettings()
	if err := c.call(ctx, http.MethodGet, ClusterPath, authorize, nil, &settings); err != nil {
		return err
	}
	older, err := checkSkew(version.Version, settings.Version)
	if err != nil {
		return err
	}
	if older {
		i.log.Warnf("This node's kedge %s is older than the server's %s: upgrade this node soon", version.Version, settings.Version)
	}
	if i.Host, err = i.cfg.Resolve(settings); err != nil {
		return err
	}
	i.Settings = settings
	// These three are not kept here. serverlb remembers the servers, pki the authorities,
	// and each server says whether it registers.
	settings.Servers, settings.Authorities, settings.Registers = nil, "", false
	text, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	return datadir.WriteFile(i.cfg.Dir.ClusterSettings(), text, 0o600)
}

// certify asks the server to sign the node's certificates, and keeps them. With newKeys
// they are for new keys.
func (i *Identity) certify(ctx context.Context, c *client, path string, newKeys bool, authorize func(*http.Request)) error {
	password, err := EnsurePassword(i.cfg.PasswordFile, datadir.K3sNodePassword)
	if err != nil {
		return err
	}
	requests, err := i.Requests(newKeys)
	if err != nil {
		return err
	}
	var answer Response
	err = c.call(ctx, http.MethodPost, path, authorize, Request{
		Node: i.Host.Name, Addresses: i.Host.IPs, Password: password, Requests: requests,
	}, &answer)
	if err != nil {
		return err
	}
	return i.Accept(answer.ServerCA, answer.ClientCA, answer.Certificates)
}

// wantsRenewal tells whether the node's certificates should be renewed. They should if
// pki says so, if the server has told of other authorities, or if the server ties
// certificates to a registration and these are not tied to one.
func (i *Identity) wantsRenewal() bool {
	return i.WantsRenewal(i.Host.IPs) || i.Settings.Registers && !i.Registered() ||
		i.Settings.Authorities != "" && !i.Follows(i.Settings.Authorities)
}

// Renew asks a server for new certificates if this node needs them, and returns their
// files. With anyway it always asks, and makes new keys.
func (i *Identity) Renew(ctx context.Context, anyway bool) ([]string, error) {
	c := i.client(i.TLS(pki.NodeUser(i.cfg.Name)))
	defer c.close()
	var settings Settings
	err := c.call(ctx, http.MethodGet, ClusterPath, nil, nil, &settings)
	if errors.Is(err, errUnauthorized) {
		return nil, fmt.Errorf("%w: to join again, restart kedge with a join token", errFormer)
	}
	if err != nil {
		return nil, err
	}
	i.Settings.Authorities, i.Settings.Registers = settings.Authorities, settings.Registers
	if !anyway && !i.wantsRenewal() {
		return nil, nil
	}
	if err := i.certify(ctx, c, RenewPath, anyway, nil); err != nil {
		return nil, err
	}
	return i.CertFiles(), nil
}
