// Package renewal keeps the certificates of a running kedge from ending: it
// renews them in time, and all at once when `kedge certificate rotate` asks for it.
// Servers and agents run it, each with what they renew; who uses the certificates
// takes the new ones by itself.
package renewal

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/localapi"
)

const (
	// lookInterval is how often is looked at the latest: the clock may have been set.
	lookInterval = time.Hour
	// firstRetry is how long after a failure is tried again.
	firstRetry = time.Minute
)

// Config is what a Keeper keeps.
type Config struct {
	Now func() time.Time
	// Due is when the first certificate is to be renewed; zero is never.
	Due func() time.Time
	// Renew renews those that are to be, or all, with new keys. It returns the files
	// of the new ones.
	Renew func(ctx context.Context, all bool) ([]string, error)
	// Replace prepares a step of replacing the authorities on all servers: the last one
	// or the first. It is nil where there is but one server, and on agents.
	Replace func(ctx context.Context, finish bool) error
	// Lagging tells which nodes, of which it is given the addresses of the kubelets, and
	// servers, HOST:PORT, have not followed to new authorities. An agent has none.
	Lagging func(ctx context.Context, kubelets map[string]string, servers []string) (Lag, error)
}

// Lag is how servers and nodes follow to new authorities.
type Lag struct {
	// Why some have not, by what they are called.
	Why map[string]string `json:"why,omitempty"`
	// Since is when the last of the others has.
	Since time.Time `json:"since"`
}

// Keeper is the component.
type Keeper struct {
	cfg Config
	log *logrus.Entry
	// renewing is held while certificates are renewed.
	renewing sync.Mutex
	look     chan struct{}
}

// New makes the component.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, log: logrus.WithField("component", "certificates"), look: make(chan struct{}, 1)}
}

// Look has the certificates looked at now.
func (k *Keeper) Look() {
	select {
	case k.look <- struct{}{}:
	default:
	}
}

// Name implements component.Component.
func (*Keeper) Name() string { return "certificates" }

// Run implements component.Component. A renewal that fails, on a full disk or
// without a server, is logged and tried again: there is much time left then.
func (k *Keeper) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		timer := time.NewTimer(pause(k.cfg.Now(), k.cfg.Due()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-k.look:
			timer.Stop()
		}
		if _, err := k.renew(ctx, false); err != nil && ctx.Err() == nil {
			k.log.WithError(err).Warnf("Cannot look after the certificates, and will try again in %s", pause(k.cfg.Now(), k.cfg.Due()).Round(time.Second))
		}
	}
}

// pause is how long to wait for what is due. What could not be renewed is tried
// again after as long as it is late.
func pause(now, due time.Time) time.Duration {
	if due.IsZero() {
		return lookInterval
	}
	if due.After(now) {
		return min(due.Sub(now), lookInterval)
	}
	return min(max(now.Sub(due), firstRetry), lookInterval)
}

func (k *Keeper) renew(ctx context.Context, all bool) ([]string, error) {
	k.renewing.Lock()
	defer k.renewing.Unlock()
	files, err := k.cfg.Renew(ctx, all)
	if len(files) > 0 && err == nil {
		k.log.Infof("Renewed %d certificates", len(files))
	}
	return files, err
}

// What is asked, and what comes back.
type (
	renewed struct {
		Files []string `json:"files,omitempty"`
	}
	replacement struct {
		Finish bool `json:"finish"`
	}
	suspects struct {
		Kubelets map[string]string `json:"kubelets,omitempty"`
		Servers  []string          `json:"servers,omitempty"`
	}
)

// Routes implements localapi.Part, for `kedge certificate`.
func (k *Keeper) Routes() []localapi.Route {
	routes := []localapi.Route{localapi.Answer(localapi.RenewCertificates, func(ctx context.Context, _ localapi.Nothing) (renewed, error) {
		files, err := k.renew(ctx, true)
		return renewed{files}, err
	})}
	if k.cfg.Replace != nil {
		routes = append(routes, localapi.Answer(localapi.ReplaceAuthorities, func(ctx context.Context, q replacement) (localapi.Nothing, error) {
			return localapi.Nothing{}, k.cfg.Replace(ctx, q.Finish)
		}))
	}
	if k.cfg.Lagging != nil {
		routes = append(routes, localapi.Answer(localapi.LaggingAuthorities, func(ctx context.Context, q suspects) (Lag, error) {
			return k.cfg.Lagging(ctx, q.Kubelets, q.Servers)
		}))
	}
	return routes
}

// Rotate has the kedge of this host replace all its certificates and their keys. It
// returns the files of the new ones, also if others failed.
func Rotate(ctx context.Context, kedge *localapi.Client) ([]string, error) {
	var answer renewed
	err := kedge.Ask(ctx, localapi.RenewCertificates, nil, &answer)
	return answer.Files, err
}

// Replace asks the server of this host, one of several, to prepare a step of replacing
// the authorities on all of them: Config.Replace.
func Replace(ctx context.Context, kedge *localapi.Client, finish bool) error {
	return kedge.Ask(ctx, localapi.ReplaceAuthorities, replacement{finish}, &localapi.Nothing{})
}

// Lagging asks the server of this host which nodes and servers have not followed to its
// new authorities, and why: Config.Lagging.
func Lagging(ctx context.Context, kedge *localapi.Client, kubelets map[string]string, servers []string) (Lag, error) {
	var answer Lag
	err := kedge.Ask(ctx, localapi.LaggingAuthorities, suspects{kubelets, servers}, &answer)
	return answer, err
}
