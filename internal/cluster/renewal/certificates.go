// Package renewal keeps the certificates of a running kedge from ending: it
// renews them in time, and all at once when `kedge certificate rotate` asks for it.
// Servers and agents run it, each with what they renew; who uses the certificates
// takes the new ones by itself.
package renewal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi"
)

const (
	// lookInterval is how often is looked at the latest: the clock may have been set.
	lookInterval = time.Hour
	// firstRetry is how long after a failure is tried again.
	firstRetry = time.Minute
)

// Where the socket is asked for new certificates and authorities, and for who lags
// behind.
const (
	rotatePath  = "rotate"
	replacePath = "replace"
	laggingPath = "lagging"
)

// Config is what a Keeper keeps.
type Config struct {
	// Socket is where Rotate is answered.
	Socket string
	Now    func() time.Time
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
	listener, err := localapi.Listen(k.cfg.Socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() { k.run(ctx) })
	ready()
	err = localapi.Serve(ctx, listener, http.HandlerFunc(k.answer))
	cancel()
	looking.Wait()
	return err
}

// run renews what is due until ctx ends.
func (k *Keeper) run(ctx context.Context) {
	for {
		timer := time.NewTimer(pause(k.cfg.Now(), k.cfg.Due()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
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

// question is what the socket is asked, and answer what comes back.
type (
	question struct {
		Kubelets map[string]string `json:"kubelets,omitempty"`
		Servers  []string          `json:"servers,omitempty"`
		Finish   bool              `json:"finish,omitempty"`
	}
	answer struct {
		Files []string `json:"files,omitempty"`
		Lag   Lag      `json:"lag"`
		Error string   `json:"error,omitempty"`
	}
)

func (k *Keeper) answer(w http.ResponseWriter, r *http.Request) {
	var q question
	var a answer
	err := json.NewDecoder(r.Body).Decode(&q)
	switch {
	case err != nil:
	case r.URL.Path == "/"+rotatePath:
		a.Files, err = k.renew(r.Context(), true)
	case r.URL.Path == "/"+laggingPath && k.cfg.Lagging != nil:
		a.Lag, err = k.cfg.Lagging(r.Context(), q.Kubelets, q.Servers)
	case r.URL.Path == "/"+replacePath && k.cfg.Replace != nil:
		err = k.cfg.Replace(r.Context(), q.Finish)
	case r.URL.Path == "/"+replacePath:
		err = errors.New("the kedge of this host is not one of several servers: run this on a server")
	default:
		err = fmt.Errorf("the kedge of this host does not know %q", r.URL.Path)
	}
	if err != nil {
		a.Error = err.Error()
	}
	localapi.Answer(w, a)
}

// Rotate has the kedge of this host replace all its certificates and their keys. It
// returns the files of the new ones, also if others failed.
func Rotate(ctx context.Context) ([]string, error) {
	a, err := ask(ctx, rotatePath, question{})
	return a.Files, err
}

// Replace asks the server of this host, one of several, to prepare a step of replacing
// the authorities on all of them: Config.Replace.
func Replace(ctx context.Context, finish bool) error {
	_, err := ask(ctx, replacePath, question{Finish: finish})
	return err
}

// Lagging asks the server of this host who has not followed to its new authorities, and
// why: Config.Lagging.
func Lagging(ctx context.Context, kubelets map[string]string, servers []string) (Lag, error) {
	a, err := ask(ctx, laggingPath, question{Kubelets: kubelets, Servers: servers})
	return a.Lag, err
}

func ask(ctx context.Context, path string, q question) (answer, error) {
	var a answer
	err := localapi.Ask(ctx, datadir.CertificateSocket, path, q, &a)
	switch {
	case errors.Is(err, localapi.ErrNobody):
		err = errors.New("no kedge runs on this host: start it; certificates that are about to end are renewed by each start")
	case err != nil:
		err = fmt.Errorf("ask the kedge of this host: %w", err)
	case a.Error != "":
		err = errors.New(a.Error)
	}
	return a, err
}
