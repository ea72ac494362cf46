package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// comparePatience is how long a server that has joined before waits at its start for
// the comparison with another server.
const comparePatience = 5 * time.Second

// ServerConfig is what a server has to know to join others.
type ServerConfig struct {
	// Server is HOST:PORT of another server of the cluster.
	Server string
	Dial   Dial
	// Token is needed when the server joins for the first time.
	Token string
	// ShortToken allows Token to be the secret alone: see parseConfigured.
	ShortToken bool
	Dir        datadir.Dir
	// Cluster is this server's settings of the cluster.
	Cluster config.Cluster
	Clock   *pki.Clock
}

// JoinServer makes this machine a server of another server's cluster. It takes the
// cluster's secrets from the other server, unless they are here. It fails if the two
// have different settings or secrets. While the other server cannot be reached, it
// tries again until ctx ends.
//
// If this server has joined before, JoinServer only compares the two. This server then
// starts even if the other one does not answer.
func JoinServer(ctx context.Context, cfg ServerConfig, before bool) (*ServerJoin, error) {
	j := &ServerJoin{cfg: cfg, log: logrus.WithField("component", "join")}
	if before {
		return j, j.compare(ctx)
	}
	if cfg.Token == "" {
		return nil, errors.New("a server needs the cluster's token to join it: give the token with --token or --token-file; it is in server/token in the data directory of each server")
	}
	token, err := parseConfigured(cfg.Token, cfg.ShortToken)
	if err != nil {
		return nil, err
	}
	if token.Hash == "" {
		token.User = ServerUser
	}
	if token.User != ServerUser {
		return nil, errors.New("this token is for agents: use the server token, which is in server/token in the data directory of each server")
	}
	j.token = token
	if err := j.checkOwn(); err != nil {
		return nil, err
	}
	if err := retry(ctx, j.log, func() error { return j.take(ctx) }); err != nil {
		return nil, err
	}
	return j, forgetTrusted(cfg.Dir)
}

// ServerJoin is a server that joins.
type ServerJoin struct {
	cfg   ServerConfig
	token Token
	// roots are the authorities of the cluster, after the first exchange.
	roots *x509.CertPool
	// clock says that the clocks of the two servers differ too much; nil if they do not.
	clock error
	log   *logrus.Entry
}

// checkOwn fails if this server already has a cluster of its own. With a short token, trust
// finds out whether the authority here is that of the other server.
func (j *ServerJoin) checkOwn() error {
	authority, err := os.ReadFile(j.authorities())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read authority: %w", err)
	}
	if _, err := os.Stat(j.cfg.Dir.SQLite()); err == nil || j.token.Hash != "" && pki.FindCA(authority, j.token.Hash) == nil {
		return j.otherCluster()
	}
	return nil
}

// authorities returns the file with the authorities that this server has of its cluster.
func (j *ServerJoin) authorities() string {
	return filepath.Join(j.cfg.Dir.ServerTLS(), "server-ca.crt")
}

// otherCluster says that this server has a cluster of its own.
func (j *ServerJoin) otherCluster() error {
	return fmt.Errorf("this server has a cluster of its own, with its state in %s, and two clusters cannot be merged. "+
		"To keep that cluster, leave --server out. To join the one at %s, and lose this server's cluster with everything that runs in it, run `kedge uninstall` and start again. "+
		"If this server was off while the certificate authorities of its cluster were replaced, delete its node (`kubectl delete node`), run `kedge uninstall` and start again",
		j.cfg.Dir.ServerDB(), j.cfg.Server)
}

// take takes the secrets that all servers share from the other server, after it has
// compared clocks, versions and settings.
func (j *ServerJoin) take(ctx context.Context) error {
	theirs, secrets, err := j.ask(ctx)
	var other *otherAuthorityError
	if errors.As(err, &other) && other.kept == j.authorities() {
		return j.otherCluster()
	}
	if err != nil {
		return err
	}
	if j.clock != nil {
		return retryable{error: j.clock} // after a boot, a clock may be set at any moment
	}
	older, err := checkSkew(version.Version, theirs.Version)
	if err != nil {
		return err
	}
	if older {
		j.log.Warnf("This server's kedge %s is older than the other server's %s: upgrade this server soon", version.Version, theirs.Version)
	}
	if err := checkSettings(j.cfg.Cluster, theirs.Cluster, j.cfg.Server); err != nil {
		return err
	}
	return j.keep(secrets)
}

// compare fails if settings or secrets of this server differ from the other server's.
// It passes if the other server is down, or no longer knows this server's token.
func (j *ServerJoin) compare(ctx context.Context) error {
	var err error
	if j.token, err = keptToken(j.cfg.Dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, comparePatience)
	defer cancel()
	theirs, secrets, err := j.ask(ctx)
	var temporary retryable
	var other *otherAuthorityError
	switch {
	case errors.As(err, &other):
		return j.otherCluster()
	case errors.As(err, &temporary), errors.Is(err, errUnauthorized):
		j.log.Warnf("Starting without a comparison of this server's settings with those of the server at %s: %v", j.cfg.Server, err)
		return nil
	case err != nil:
		return err
	}
	if j.clock != nil {
		j.log.Warn(j.clock)
	}
	if err := checkSettings(j.cfg.Cluster, theirs.Cluster, j.cfg.Server); err != nil {
		return err
	}
	return j.keep(secrets)
}

// keep writes the secrets that are not here. It fails if a secret that is here differs.
func (j *ServerJoin) keep(secrets map[string][]byte) error {
	own, err := pki.Secrets(j.cfg.Dir)
	if err != nil {
		return err
	}
	if names := drifted(own, secrets); len(names) > 0 {
		return driftError(names, j.cfg.Dir.ServerTLS(), j.cfg.Server)
	}
	for name := range own {
		delete(secrets, name)
	}
	return pki.KeepSecrets(j.cfg.Dir, secrets)
}

// trust takes the other server's authority as j.roots. It fails if that server is not of
// the token's cluster. While authorities are replaced, the other server may still have
// only the old one, and the kept token the hash of the new one. Therefore it also accepts
// every authority that this server has.
func (j *ServerJoin) trust(ctx context.Context) error {
	unverified := newClient(j.cfg.Server, j.cfg.Dial, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, j.cfg.Clock.Now)
	defer unverified.close()
	own, err := pki.Secrets(j.cfg.Dir)
	if err != nil {
		return err
	}
	pins, kept := []string{j.token.Hash}, ""
	if j.token.Hash == "" {
		pins, kept, err = unverified.pins(ctx, j.cfg.Dir, j.authorities(), j.log)
	} else if authority, joined := own["server-ca.crt"]; joined {
		var known []string
		known, err = pki.CAHashes(authority)
		pins = append(pins, known...)
	}
	if err != nil {
		return err
	}
	authority, err := unverified.pinned(ctx, kept, pins...)
	if err != nil {
		return err
	}
	j.roots = x509.NewCertPool()
	j.roots.AppendCertsFromPEM(authority)
	return nil
}

// ask asks the other server for the cluster's settings and secrets, after that server
// has proved to be of the token's cluster.
func (j *ServerJoin) ask(ctx context.Context) (Settings, map[string][]byte, error) {
	if err := j.trust(ctx); err != nil {
		return Settings{}, nil, err
	}
	c := j.client()
	defer c.close()
	settings := defaultSettings()
	if err := c.call(ctx, http.MethodGet, ClusterPath, j.token.Authorize, nil, &settings); err != nil {
		return Settings{}, nil, err
	}
	j.clock = checkClock(c.clock, j.cfg.Server)
	var sealed Sealed
	if err := c.call(ctx, http.MethodGet, SecretsPath, j.token.Authorize, nil, &sealed); err != nil {
		return Settings{}, nil, err
	}
	secrets, err := sealed.Open(j.token.Secret)
	return settings, secrets, err
}

func (j *ServerJoin) client() *client {
	return newClient(j.cfg.Server, j.cfg.Dial, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: j.roots, ServerName: pki.APIName, Time: j.cfg.Clock.Now,
	}, j.cfg.Clock.Now)
}

// Member asks the other server to add this server's etcd member to the cluster. It tries
// until the other server does or ctx ends.
func (j *ServerJoin) Member(ctx context.Context, request MemberRequest) (MemberResponse, error) {
	var answer MemberResponse
	c := j.client()
	defer c.close()
	err := retry(ctx, j.log, func() error {
		return c.call(ctx, http.MethodPost, MemberPath, j.token.Authorize, request, &answer)
	})
	if err == nil && !strings.Contains(answer.InitialCluster, request.PeerURL) {
		err = fmt.Errorf("the server at %s has not added this server's etcd member", j.cfg.Server)
	}
	return answer, err
}
