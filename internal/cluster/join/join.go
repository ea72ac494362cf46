// Package join brings nodes and servers into a cluster: the join tokens, the protocol
// between a joining machine and a server, and the joining side of it. Package agent
// calls Join and package server calls JoinServer, before any component starts. Package
// supervisor is the admitting side. Package cli makes tokens with it.
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
	"github.com/kedge-dev/kedge/internal/base/loop"
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
	// ShortToken allows Token to be the secret alone: see parseConfigured.
	ShortToken bool
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
	token, err := parseConfigured(cfg.Token, cfg.ShortToken)
	if err != nil {
		return nil, err
	}
	if !errors.Is(why, pki.ErrNotJoined) {
		i.log.Warnf("Joining again: %v", why)
	}
	if err := retry(ctx, i.log, func() error { return i.join(ctx, token) }); err != nil {
		return nil, err
	}
	return i, forgetTrusted(cfg.Dir)
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
		if err := loop.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// join joins with a token. It sends nothing secret before the server has proved to be
// of the token's cluster.
func (i *Identity) join(ctx context.Context, token Token) error {
	// Not verified by TLS: the answer is the authority itself, whose hash is compared.
	unverified := i.client(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	defer unverified.close()
	pins, kept := []string{token.Hash}, ""
	if token.Hash == "" {
		var err error
		if pins, kept, err = unverified.pins(ctx, i.cfg.Dir, i.ServerCAFile(), i.log); err != nil {
			return err
		}
	}
	authority, err := unverified.pinned(ctx, kept, pins...)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	c := i.client(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: pki.APIName, Time: i.cfg.Clock.Now})
	defer c.close()
	for _, meaning := range token.meanings() {
		token = meaning
		if err = i.learn(ctx, c, token.Authorize); !errors.Is(err, errUnauthorized) {
			break
		}
	}
	if err != nil {
		return err
	}
	return i.certify(ctx, c, JoinPath, false, token.Authorize)
}

// pinned returns the server's authority that has one of the hashes. The first is that of the
// token, unless kept is the file that they are from. The caller must trust only that one: the
// program that answers may have added others.
func (c *client) pinned(ctx context.Context, kept string, hashes ...string) ([]byte, error) {
	var authority []byte
	if err := c.call(ctx, http.MethodGet, CACertsPath, nil, nil, &authority); err != nil {
		return nil, err
	}
	found, err := pki.CAHash(authority)
	if err != nil {
		return nil, c.noServer()
	}
	for _, hash := range hashes {
		if pinned := pki.FindCA(authority, hash); pinned != nil {
			return pinned, nil
		}
	}
	return nil, &otherAuthorityError{c.server, found, hashes[0], kept}
}

// noServer says that the program that answers is not a server of kedge.
func (c *client) noServer() error {
	return fmt.Errorf("the program that answers at %s is not a kedge server that nodes can join: correct --server", c.server)
}

// otherAuthorityError says that a server is not of the token's cluster, or of the one that
// this machine trusted with a short token. It keeps the hash of that one in the file kept.
type otherAuthorityError struct{ server, found, hash, kept string }

func (e *otherAuthorityError) Error() string {
	if e.kept != "" {
		return fmt.Sprintf("the server at %s is not the one that this host has trusted since it first used its short token: its certificate authority has the hash %s, and that one's has %s. "+
			"Correct --server. If the first server was the wrong one, remove %s. If both are right, something on the way poses as the server, and may have the token", e.server, e.found, e.hash, e.kept)
	}
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
