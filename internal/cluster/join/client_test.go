package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExplain(t *testing.T) {
	c := &client{server: "pi:6443", now: func() time.Time { return time.Date(2049, 1, 1, 0, 0, 0, 0, time.UTC) }}
	for name, test := range map[string]struct {
		err   error
		want  string
		retry bool
	}{
		"other cluster": {x509.UnknownAuthorityError{}, "not of this node's cluster", false},
		"other name":    {x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}, "not of this node's cluster", false},
		"clock off":     {x509.CertificateInvalidError{Reason: x509.Expired}, "2049-01-01T00:00:00Z, the time of this machine's clock", true},
		"plain HTTP":    {tls.RecordHeaderError{}, "does not speak TLS", false},
		"no such name":  {&net.DNSError{Name: "pi"}, "cannot resolve the name", true},
		"refused":       {syscall.ECONNREFUSED, "nothing listens at pi:6443", true},
		"no route":      {syscall.ENETUNREACH, "no route to pi:6443", true},
		"port blocked":  {context.DeadlineExceeded, "firewalls on the way let that port through", true},
		"anything else": {errors.New("boom"), "boom", true},
	} {
		err := c.explain(fmt.Errorf("get: %w", test.err))
		var temporary retryable
		if !strings.Contains(err.Error(), test.want) || errors.As(err, &temporary) != test.retry {
			t.Errorf("%s: got %v (retry %t), want %q (retry %t)", name, err, errors.As(err, &temporary), test.want, test.retry)
		}
	}
}

func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   string
		want   string
		retry  bool
	}{
		"good":         {200, `{"version": "v1"}`, "", false},
		"something":    {200, "hello", "is not a kedge server", false},
		"unauthorized": {401, "unauthorized", "does not accept the token", false},
		"not found":    {404, "404 page not found", "is not a kedge server that nodes can join", false},
		"refused":      {403, "the name is taken", "refused the request: the name is taken", false},
		"redirected":   {302, "", "refused the request", false},
		"starting":     {503, "it is starting\nreally", "is not ready: it is starting", true},
		"too many":     {429, "wait", "is not ready: wait", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://example.org/")
				http.Error(w, test.body, test.status)
			}))
			defer server.Close()
			dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
			}
			c := newClient("pi:6443", dial, &tls.Config{InsecureSkipVerify: true}, time.Now)
			defer c.close()
			var settings Settings
			err := c.call(t.Context(), http.MethodGet, ClusterPath, nil, nil, &settings)
			var temporary retryable
			switch {
			case test.want == "":
				if err != nil || settings.Version != "v1" {
					t.Errorf("got %+v, %v", settings, err)
				}
			case err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, &temporary) != test.retry:
				t.Errorf("got %v", err)
			}
		})
	}
}
