package nodestream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
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
		told, failures := "", 0
		for delay := backoff(); ; {
			began := time.Now()
			err := stream(ctx, func(update U) error {
				err := apply(update)
				if err == nil {
					failures = 0
					component.Report(ctx, nil)
				}
				return err
			})
			if ctx.Err() != nil {
				return nil
			}
			pause, text := delay(), fmt.Sprint(err)
			switch {
			case time.Since(began) > steady, errors.Is(err, context.Canceled):
				// A server has stopped, most likely. The next attempt says more.
				delay, told, failures = backoff(), "", 0
				log.Debug(text)
			case text != told:
				told = text
				log.Logf(k.levelOf(err), "%s. Trying again. Until then, what the node knows stays in force", text)
			}
			if failures++; failures > 1 && k.levelOf(err) == logrus.WarnLevel {
				component.Report(ctx, fmt.Errorf("%w. Until that is mended, what the node knows stays in force", err))
			}
			if errors.Is(err, k.missing) {
				pause = without
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// levelOf returns the level at which a node logs the end of a stream.
func (k Kind[U]) levelOf(err error) logrus.Level {
	if errors.Is(err, k.missing) {
		return k.level
	}
	return logrus.WarnLevel
}

// backoff returns the delays between attempts. They are spread, so that the nodes do not
// all come at once to a server that has restarted.
func backoff() wait.DelayFunc {
	return wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 10 * time.Second, Steps: 10}.DelayFunc()
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
