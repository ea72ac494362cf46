// Package renewal renews the certificates of a running kedge before they expire, and all
// at once when `kedge certificate rotate` asks for it. Servers and agents run its Keeper,
// each with its own way to renew. The parts that use the certificates take the new ones
// by themselves.
package renewal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

const (
	// lookInterval is the longest time between two looks.
	lookInterval = time.Hour
	// firstRetry is the wait before the first attempt after a failure.
	firstRetry = time.Minute
)

// Config is what a Keeper has to know.
type Config struct {
	Now func() time.Time
	// Due returns when the first certificate is to be renewed. Zero means never.
	Due func() time.Time
	// Renew renews the certificates that need it, or all of them, with new keys. It
	// returns the files of the new ones.
	Renew func(ctx context.Context, all bool) ([]string, error)
	// Replace prepares a step of replacing the authorities on all servers: the first
	// step, or the last one if finish is true. It is nil on a single server, and on agents.
	Replace func(ctx context.Context, finish bool) error
	// Lagging returns which nodes and servers have not followed to new authorities.
	// kubelets are the kubelets' addresses by node, and servers are HOST:PORT. It is nil
	// on agents.
	Lagging func(ctx context.Context, kubelets map[string]string, servers []string) (Lag, error)
}

// Lag says how far servers and nodes have followed to new authorities.
type Lag struct {
	// Why has the reasons of those that have not followed, by their names in messages.
	Why map[string]string `json:"why,omitempty"`
	// Since is when the last of the others followed.
	Since time.Time `json:"since"`
}

// Keeper is the component.
type Keeper struct {
	cfg Config
	log *logrus.Entry
	// renewing is held while certificates are renewed.
	renewing sync.Mutex
	look     loop.Changes
}

// New makes the component.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, log: logrus.WithField("component", "certificates"), look: loop.NewChanges()}
}

// Look makes the Keeper look at the certificates now.
func (k *Keeper) Look() { k.look.Notify() }

// Name implements component.Component.
func (*Keeper) Name() string { return "certificates" }

// Run implements component.Component. If a renewal fails, for example because the disk is
// full or no server answers, Run logs that and tries again. Usually the certificates are valid
// for a long time yet.
func (k *Keeper) Run(ctx context.Context, ready func()) error {
	ready()
	looks := loop.Loop{Log: k.log, First: firstRetry, Last: lookInterval, Wake: k.look}
	begun := false
	looks.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		// The start has just looked at the certificates.
		if begun {
			if _, err := k.renew(ctx, false); err != nil {
				return loop.Next{}, fmt.Errorf("renew the certificates: %w", err)
			}
		}
		begun = true
		return loop.Next{After: pause(k.cfg.Now(), k.cfg.Due())}, nil
	})
	return nil
}

// pause returns how long to wait before the next look.
func pause(now, due time.Time) time.Duration {
	if due.IsZero() {
		return lookInterval
	}
	return min(max(due.Sub(now), firstRetry), lookInterval)
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

// The requests of `kedge certificate` and their answers.
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

// Rotate asks the kedge on this host to replace all its certificates and their keys. It
// returns the files of the new ones, even if others failed.
func Rotate(ctx context.Context, kedge *localapi.Client) ([]string, error) {
	answer, err := localapi.Ask[renewed](ctx, kedge, localapi.RenewCertificates, nil)
	return answer.Files, err
}

// Replace asks the server on this host, one of several, to prepare a step of replacing
// the authorities on all of them: see Config.Replace.
func Replace(ctx context.Context, kedge *localapi.Client, finish bool) error {
	_, err := localapi.Ask[localapi.Nothing](ctx, kedge, localapi.ReplaceAuthorities, replacement{finish})
	return err
}

// Lagging asks the server on this host which nodes and servers have not followed to its
// new authorities, and why: see Config.Lagging.
func Lagging(ctx context.Context, kedge *localapi.Client, kubelets map[string]string, servers []string) (Lag, error) {
	return localapi.Ask[Lag](ctx, kedge, localapi.LaggingAuthorities, suspects{kubelets, servers})
}
