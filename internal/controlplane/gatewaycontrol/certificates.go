package gatewaycontrol

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
)

// asksForCertificates tells whether an object asks kedge to get certificates.
func (c *compiled) asksForCertificates() bool {
	for object := range c.gateways.Gateways {
		if acme.Asks(object.Annotations) {
			return true
		}
	}
	for object := range c.ingresses.Served {
		if acme.Asks(object.Annotations) {
			return true
		}
	}
	return false
}

// answerChallenges lets the fronts answer the challenges of authorities. It adds certificates to
// those of the nodes.
func (c *compiled) answerChallenges(certificates map[string]*routing.Certificate) {
	challenges := acme.ReadChallenges(c.secret(acme.ChallengesName.Namespace, acme.ChallengesName.Name))
	c.fronts = acme.Merge(challenges, c.fronts, certificates)
}

// issuer gets certificates. It is an acme.Manager, except in tests.
type issuer interface {
	Run(ctx context.Context)
	Update(*acme.Objects)
}

// issuing runs an issuer while an object asks for certificates. The issuer stays while it does
// not run, because it knows how many attempts each namespace may still make.
type issuing struct {
	issuer issuer
	// cancel is nil while no object asks.
	cancel  context.CancelFunc
	running sync.WaitGroup
	// turn is held by the Run that has not returned yet.
	turn sync.Mutex
}

// syncCertificates tells the issuer what the objects ask for.
func (t *term) syncCertificates(ctx context.Context, newest *compiled) {
	i := &t.issuing
	if !newest.asks {
		i.stop()
		return
	}
	if i.issuer == nil {
		cfg := t.ACME
		cfg.API, cfg.Events = t.api, t.events()
		i.issuer = t.newIssuer(cfg)
	}
	if i.cancel == nil {
		own, cancel := context.WithCancel(ctx)
		i.cancel = cancel
		i.running.Go(func() {
			i.turn.Lock()
			defer i.turn.Unlock()
			i.issuer.Run(own)
		})
	}
	i.issuer.Update(&acme.Objects{
		Ingresses: slices.Collect(maps.Keys(newest.ingresses.Served)),
		Gateways:  slices.Collect(maps.Keys(newest.gateways.Gateways)),
		Owners:    newest.owners,
		OwnFronts: newest.ownFronts(),
		Secret:    newest.secret,
	})
}

// ownFronts returns NAMESPACE/NAME of the Gateways with addresses of their own.
func (c *compiled) ownFronts() map[string]bool {
	names := map[string]bool{}
	for i := range c.fronts {
		if gateway := c.fronts[i].Gateway; gateway != nil {
			names[gateway.Namespace+"/"+gateway.Name] = true
		}
	}
	return names
}

// stop ends attempts, and does not wait for them.
func (i *issuing) stop() {
	if i.cancel != nil {
		i.cancel()
		i.cancel = nil
		i.issuer.Update(nil)
	}
}

// close ends the issuer, and waits for it.
func (i *issuing) close() {
	i.stop()
	i.running.Wait()
}
