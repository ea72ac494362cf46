package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

const (
	// callTimeout bounds a call, so that the user hears within seconds what is wrong.
	callTimeout = 10 * time.Second
	// maxAnswer is how many bytes of an answer are read at most.
	maxAnswer = 1 << 20
)

// Dial connects to a server of the cluster. It may ignore the address.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// client calls the routes of a server.
type client struct {
	server string // for messages
	http   *http.Client
	now    func() time.Time
	// clock is how far the server's clock was ahead of this machine's when the server
	// last answered.
	clock time.Duration
}

// newClient returns a client. The caller must close it.
func newClient(server string, dial Dial, config *tls.Config, now func() time.Time) *client {
	return &client{server: server, http: &http.Client{
		Timeout: callTimeout,
		// No proxy: nodes reach a server as they reach the API.
		Transport: &http.Transport{DialContext: dial, TLSClientConfig: config},
		// A kedge server never redirects, and secrets must not go anywhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, now: now}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// retryable is an error that may pass by itself.
type retryable struct {
	error
	// after is how long the server asks to wait before the next attempt; zero if it
	// does not say.
	after time.Duration
}

func (e retryable) Unwrap() error { return e.error }

// errUnauthorized is a server's answer to credentials that it does not know.
var errUnauthorized = errors.New("the server does not accept the token: the token is wrong, has expired or was replaced. " +
	"Use the one in server/token in the server's data directory, or make a new one there with `kedge token create`")

// call sends body as JSON, unless body is nil, and decodes the JSON answer into result.
// If result is a *[]byte, it gets the answer unchanged. The errors say what to do.
func (c *client) call(ctx context.Context, method, path string, authorize func(*http.Request), body, result any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+pki.APIName+path, content)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if authorize != nil {
		authorize(request)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.explain(err)
	}
	defer response.Body.Close()
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		c.clock = time.Until(date)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return c.explain(err)
	}
	switch text, _, _ := strings.Cut(strings.TrimSpace(string(answer)), "\n"); {
	case response.StatusCode == http.StatusOK:
	case response.StatusCode == http.StatusUnauthorized:
		return errUnauthorized
	case response.StatusCode == http.StatusNotFound:
		return c.noServer()
	case response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return retryable{fmt.Errorf("the server at %s is not ready: %s", c.server, text), time.Duration(seconds) * time.Second}
	default:
		return fmt.Errorf("the server at %s refused the request: %s", c.server, text)
	}
	if raw, ok := result.(*[]byte); ok {
		*raw = answer
		return nil
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("the program that answers at %s is not a kedge server: %w", c.server, err)
	}
	return nil
}

// explain returns an error that says why a call probably got no answer. The error is
// retryable, except if the server is of another cluster or does not speak TLS.
func (c *client) explain(err error) error {
	var (
		unknown   x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		unnamed   x509.HostnameError
		dns       *net.DNSError
		netError  net.Error
		untrusted = fmt.Errorf("the server at %s is not of this node's cluster: another certificate authority signed its certificate. "+
			"Correct --server. To move this node to that cluster, run `kedge uninstall` and join it with that cluster's token. "+
			"If the certificate authorities of this node's cluster were replaced while the node was off (`kedge certificate rotate-ca`), "+
			"remove agent/tls in the node's data directory and join the node with the new token", c.server)
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &unnamed):
		return untrusted
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return retryable{error: fmt.Errorf("the certificate of the server at %s is not valid at %s, the time of this machine's clock: "+
			"set the clock, or give the machine a time server", c.server, c.now().UTC().Format(time.RFC3339))}
	case errors.As(err, &record):
		return fmt.Errorf("the program that answers at %s does not speak TLS, so it is not a kedge server: correct --server", c.server)
	case errors.As(err, &dns):
		return retryable{error: fmt.Errorf("this machine cannot resolve the name of the server at %s: %w: correct --server, or this machine's DNS", c.server, dns)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return retryable{error: fmt.Errorf("nothing listens at %s: check that `kedge server` runs there, and on that port", c.server)}
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return retryable{error: fmt.Errorf("there is no route to %s: check this machine's network, and --server", c.server)}
	case errors.As(err, &netError) && netError.Timeout():
		return retryable{error: fmt.Errorf("%s does not answer: check that the server runs, and that firewalls on the way let that port through", c.server)}
	}
	return retryable{error: fmt.Errorf("call the server at %s: %w", c.server, err)}
}
