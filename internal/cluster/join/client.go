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
	// callTimeout bounds a call: what blocks it shall be told within seconds.
	callTimeout = 10 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 1 << 20
)

// Dial connects to a server, whatever the address.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// client calls the routes of a server.
type client struct {
	server string // for messages
	http   *http.Client
	now    func() time.Time
	// clock is how far the server's clock was ahead of this machine's at its last
	// answer.
	clock time.Duration
}

// newClient returns a client that must be closed.
func newClient(server string, dial Dial, config *tls.Config, now func() time.Time) *client {
	return &client{server: server, http: &http.Client{
		Timeout: callTimeout,
		// No proxy: a server is reached as the API is.
		Transport: &http.Transport{DialContext: dial, TLSClientConfig: config},
		// A server of kedge sends nobody elsewhere; secrets must not go there.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, now: now}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// retryable is an error that may pass by itself.
type retryable struct {
	error
	// after is when the server asks to be tried again; zero if it does not say.
	after time.Duration
}

func (e retryable) Unwrap() error { return e.error }

// errUnauthorized is a server's answer to credentials it does not know.
var errUnauthorized = errors.New("the server does not know the token: it is wrong, has ended or was replaced; " +
	"see server/token in the server's data directory, or make a new one there by `kedge token create`")

// call sends body, if it is not nil, as JSON, and decodes the answer into
// result, or returns it as it is if that is a *[]byte. Its errors say what to do.
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
		return fmt.Errorf("what answers at %s is not a kedge server that nodes can join: correct --server", c.server)
	case response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		return retryable{fmt.Errorf("the server at %s is not ready: %s", c.server, text), time.Duration(seconds) * time.Second}
	default:
		return fmt.Errorf("the server at %s refuses: %s", c.server, text)
	}
	if raw, ok := result.(*[]byte); ok {
		*raw = answer
		return nil
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("what answers at %s is not a kedge server: %w", c.server, err)
	}
	return nil
}

// explain says of a call that got no answer what is probably wrong. All but a
// server of another cluster may pass by itself.
func (c *client) explain(err error) error {
	var (
		unknown   x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		unnamed   x509.HostnameError
		dns       *net.DNSError
		netError  net.Error
		untrusted = fmt.Errorf("the server at %s is not of this node's cluster: its certificate is of another authority: "+
			"correct --server; to move this node to that cluster, run `kedge uninstall` and join it with that cluster's token; "+
			"if the authorities of its own were replaced while it was off (`kedge certificate rotate-ca`), remove agent/tls in its data directory and join it with the new token", c.server)
	)
	switch {
	case errors.As(err, &unknown), errors.As(err, &unnamed):
		return untrusted
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return retryable{error: fmt.Errorf("the certificate of the server at %s is not valid at %s, which is what this machine's clock says: "+
			"set the clock, or give the machine a time server", c.server, c.now().UTC().Format(time.RFC3339))}
	case errors.As(err, &record):
		return fmt.Errorf("what answers at %s does not speak TLS, so it is not a kedge server: correct --server", c.server)
	case errors.As(err, &dns):
		return retryable{error: fmt.Errorf("the name of the server at %s cannot be resolved: %w: correct --server, or this machine's DNS", c.server, dns)}
	case errors.Is(err, syscall.ECONNREFUSED):
		return retryable{error: fmt.Errorf("nothing listens at %s: is kedge server running there, and on that port?", c.server)}
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return retryable{error: fmt.Errorf("there is no route to %s: see this machine's network, and --server", c.server)}
	case errors.As(err, &netError) && netError.Timeout():
		return retryable{error: fmt.Errorf("no answer from %s: is the server running, and does a firewall on the way let that port through?", c.server)}
	}
	return retryable{error: fmt.Errorf("call the server at %s: %w", c.server, err)}
}
