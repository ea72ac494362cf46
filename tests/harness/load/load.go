// Package load asks a server for the same thing over and over, and counts what goes wrong. Scenarios use
// it to show that a change loses no request.
package load

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Config says what is asked.
type Config struct {
	// Dial connects to Address whatever the URL says. Its network is that of the client's host.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Address string
	// URL is what is asked for. Its host name is in the requests.
	URL string
	// Roots has the authorities for https. HTTP2 says that HTTP/2 is spoken.
	Roots *x509.CertPool
	HTTP2 bool
	// Fresh says that each request has a connection of its own.
	Fresh bool
	// Workers is how many requests there are at a time. Each worker asks every Pause.
	Workers int
	Pause   time.Duration
}

// Load is a load that is under way.
type Load struct {
	t       testing.TB
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu       sync.Mutex
	requests int
	failures []string
}

// maxFailures is how many failures are remembered.
const maxFailures = 20

// Start begins to ask. The load ends with the test, or with Stop.
func Start(t testing.TB, cfg Config) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &Load{t: t, cancel: cancel}
	for range cfg.Workers {
		transport := &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return cfg.Dial(ctx, network, cfg.Address)
			},
			TLSClientConfig:   &tls.Config{RootCAs: cfg.Roots},
			ForceAttemptHTTP2: cfg.HTTP2,
			DisableKeepAlives: cfg.Fresh,
		}
		l.workers.Go(func() {
			defer transport.CloseIdleConnections()
			l.work(ctx, cfg, &http.Client{Transport: transport, Timeout: 30 * time.Second})
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *Load) work(ctx context.Context, cfg Config, client *http.Client) {
	tick := time.NewTicker(cfg.Pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A request that has begun is finished, so that the end of the load is no failure.
		err := ask(client, cfg.URL)
		l.mu.Lock()
		l.requests++
		if err != nil && len(l.failures) < maxFailures {
			l.failures = append(l.failures, fmt.Sprintf("%s: %v", time.Now().Format("15:04:05.000"), err))
		}
		l.mu.Unlock()
	}
}

// ask fails unless the answer is whole and has the status 200.
func ask(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	return nil
}

func (l *Load) end() {
	l.cancel()
	l.workers.Wait()
}

// Stop ends the load. It fails the test if a request failed, or if there were too few requests to
// tell.
func (l *Load) Stop(what string) {
	l.t.Helper()
	l.end()
	l.t.Logf("%s: %d requests, %d failed", what, l.requests, len(l.failures))
	for _, failure := range l.failures {
		l.t.Errorf("%s: %s", what, failure)
	}
	if l.requests < 50 {
		l.t.Errorf("%s: only %d requests", what, l.requests)
	}
}
