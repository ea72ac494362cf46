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

// comparePatience is how long the start of a server that has joined may be held
// up by the comparison with another.
const comparePatience = 5 * time.Second

// ServerConfig is what a server has to know to join others.
type ServerConfig struct {
	// Server is HOST:PORT of another server of the cluster.
	Server string
	Dial   Dial
	// Token is needed for the first time.
	Token string
	Dir   datadir.Dir
	// Cluster is this server's settings of the cluster.
	Cluster config.Cluster
	Clock   *pki.Clock
}

// JoinServer makes this machine a server of the cluster of another one: it takes
// the cluster's secrets from there, unless they are here, and its settings must be
// the same. It tries on until ctx ends while that server is out of reach.
//
// A server that has joined before is only compared with the other one: it starts
// without an answer too.
func JoinServer(ctx context.Context, cfg ServerConfig, before bool) (*ServerJoin, error) {
	j := &ServerJoin{cfg: cfg, log: logrus.WithField("component", "join")}
	if before {
		return j, j.compare(ctx)
	}
	if cfg.Token == "" {
		return nil, errors.New("to join a cluster a server needs its token: give it by --token or --token-file; it is in server/token in a server's data directory")
	}
	token, err := ParseToken(cfg.Token)
	if err != nil {
		return nil, err
	}
	if token.User != ServerUser {
		return nil, errors.New("this token is for agents: a server joins with the one that is in server/token in a server's data directory")
	}
	j.token = token
	if err := j.checkOwn(); err != nil {
		return nil, err
	}
	return j, retry(ctx, j.log, func() error { return j.take(ctx) })
}

// ServerJoin is a server that joins.
type ServerJoin struct {
	cfg   ServerConfig
	token Token
	// roots are the authorities of the cluster, after the first exchange.
	roots *x509.CertPool
	// clock is what is wrong between the other server's clock and this one's.
	clock error
	log   *logrus.Entry
}

// checkOwn refuses to join where there is another cluster already.
func (j *ServerJoin) checkOwn() error {
	authority, err := os.ReadFile(filepath.Join(j.cfg.Dir.ServerTLS(), "server-ca.crt"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read authority: %w", err)
	}
	if _, err := os.Stat(j.cfg.Dir.SQLite()); err == nil || pki.FindCA(authority, j.token.Hash) == nil {
		return j.otherCluster()
	}
	return nil
}

// otherCluster says that this server has a cluster of its own.
func (j *ServerJoin) otherCluster() error {
	return fmt.Errorf("this server has a cluster of its own, whose state is in %s, and two clusters cannot be made one. "+
		"To go on with it, leave --server out. To join the one at %s, and lose this one with all that runs in it, run `kedge uninstall` and start again; "+
		"so does a server that was off while the authorities of its cluster were replaced, after kubectl delete node",
		j.cfg.Dir.ServerDB(), j.cfg.Server)
}

// take takes what all servers have alike.
func (j *ServerJoin) take(ctx context.Context) error {
	theirs, secrets, err := j.ask(ctx)
	if err != nil {
		return err
	}
	if j.clock != nil {
		return retryable{error: j.clock} // it may be set any moment, at a boot
	}
	older, err := checkSkew(version.Version, theirs.Version)
	if err != nil {
		return err
	}
	if older {
		j.log.Warnf("This server's kedge %s is older than the other's %s: update it soon", version.Version, theirs.Version)
	}
	if err := checkSettings(j.cfg.Cluster, theirs.Cluster, j.cfg.Server); err != nil {
		return err
	}
	return j.keep(secrets)
}

// compare finds what this server no longer has as the other one has it. That one
// may be down, or not know the token that this one was given any more.
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
		j.log.Warnf("Starting without having compared this server with the one at %s: %v", j.cfg.Server, err)
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

// keep writes the secrets that are not here, and refuses those that are not as
// here.
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

// trust finds the other server's authorities, if it is of the token's cluster. Where
// authorities are replaced that server may not have the one of now yet, which the kept
// token has the hash of.
func (j *ServerJoin) trust(ctx context.Context) error {
	own, err := pki.Secrets(j.cfg.Dir)
	if err != nil {
		return err
	}
	var known []string
	if authority, joined := own["server-ca.crt"]; joined {
		if known, err = pki.CAHashes(authority); err != nil {
			return err
		}
	}
	unverified := newClient(j.cfg.Server, j.cfg.Dial, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, j.cfg.Clock.Now)
	defer unverified.close()
	authority, err := unverified.pinned(ctx, j.token.Hash, known...)
	if err != nil {
		return err
	}
	j.roots = x509.NewCertPool()
	j.roots.AppendCertsFromPEM(authority)
	return nil
}

// ask asks the other server for the cluster's settings and secrets, after that has
// proved to be of the token's cluster.
func (j *ServerJoin) ask(ctx context.Context) (Settings, map[string][]byte, error) {
	if err := j.trust(ctx); err != nil {
		return Settings{}, nil, err
	}
	c := j.client()
	defer c.close()
	var settings Settings
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

// Member asks the other server to take this one's etcd member in, until it does
// or ctx ends.
func (j *ServerJoin) Member(ctx context.Context, request MemberRequest) (MemberResponse, error) {
	var answer MemberResponse
	c := j.client()
	defer c.close()
	err := retry(ctx, j.log, func() error {
		return c.call(ctx, http.MethodPost, MemberPath, j.token.Authorize, request, &answer)
	})
	if err == nil && !strings.Contains(answer.InitialCluster, request.PeerURL) {
		err = fmt.Errorf("the server at %s has not taken this one in", j.cfg.Server)
	}
	return answer, err
}
