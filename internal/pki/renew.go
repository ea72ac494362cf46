package pki

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/component"
)

// renewInterval is how often certificates are looked at.
const renewInterval = time.Hour

// Renewer returns the component that renews certificates while the server
// runs. A renewal that fails, on a full disk say, is logged and tried again an
// hour later: there are months left then.
func (s *Server) Renewer() component.Component {
	return component.Func("certificates", func(ctx context.Context, ready func()) error {
		hourly := time.NewTicker(renewInterval)
		defer hourly.Stop()
		ready()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hourly.C:
				if err := s.renew(); err != nil {
					logrus.WithField("component", "certificates").WithError(err).Warn("Renewing failed and is tried again in an hour")
				}
			}
		}
	})
}
