package nodestream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// Stream calls apply with updates, the first of which is everything, until it fails or
// ctx ends.
type Stream[U any] func(ctx context.Context, apply func(U) error) error

// Keep returns a stream that does not fail. If the stream that it is made of breaks, or if
// apply fails, it waits a moment and begins again, with everything. It returns nil when ctx
// ends. Nobody may change what an update points to.
func (k Kind[U]) Keep(stream Stream[U]) Stream[U] {
	return func(ctx context.Context, apply func(U) error) error {
		log := logrus.WithField("component", k.component)
		var began time.Time
		told, failures := false, 0
		l := loop.Stream(log)
		l.Meanwhile = "what the node knows stays in force"
		l.Quiet = func(err error) bool {
			// A server has stopped, most likely. The next attempt says more.
			return errors.Is(err, context.Canceled) || time.Since(began) > l.Steady
		}
		l.Run(ctx, func(ctx context.Context) (next loop.Next, err error) {
			began = time.Now()
			err = cmp.Or(stream(ctx, func(update U) error {
				err := apply(update)
				if err == nil {
					told, failures = false, 0
					component.Report(ctx, nil)
				}
				return err
			}), io.EOF)
			missing := errors.Is(err, k.missing)
			if missing {
				next.After = without
			}
			if missing && k.optional {
				if !told {
					told = true
					log.Infof("%v. Trying again", err)
				}
				component.Report(ctx, nil)
				return next, nil
			}
			if l.Quiet(err) {
				failures = 0
			}
			if failures++; failures > 1 && ctx.Err() == nil {
				component.Report(ctx, fmt.Errorf("%w. Until that is mended, what the node knows stays in force", err))
			}
			return next, err
		})
		return nil
	}
}

// From returns the stream of a server. client is that of the node itself, which leads to
// a server that answers.
func (k Kind[U]) From(client *rest.Config) Stream[U] {
	return func(ctx context.Context, apply func(U) error) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		quiet := time.AfterFunc(answerPatience, cancel)
		defer quiet.Stop()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Host+k.Path, nil)
		if err != nil {
			return fmt.Errorf("make request: %w", err)
		}
		response, err := (&http.Client{
			Transport: client.Transport,
			// A kedge server never redirects.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}).Do(request)
		if err != nil {
			return fmt.Errorf("ask a server for the %s: %w", k.subject, err)
		}
		defer response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK:
		case http.StatusNotFound:
			return k.missing
		default:
			return fmt.Errorf("ask a server for the %s: it answers %s", k.subject, response.Status)
		}
		d := k.NewDecoder(response.Body)
		for {
			quiet.Reset(silence)
			update, err := d.Next()
			if err != nil {
				return fmt.Errorf("read the %s from a server: %w", k.subject, err)
			}
			quiet.Stop()
			if k.empty(&update) {
				continue // a keep-alive
			}
			if err := apply(update); err != nil {
				return fmt.Errorf("%s the %s: %w", k.verb, k.subject, err)
			}
		}
	}
}
