package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/kubelet/server"

	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// callers lets the token "good" read the metrics of node-1, and "admin" the rest. It knows the token "other".
func callers() server.AuthInterface {
	known := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		switch token := r.Header.Get("Authorization"); token {
		case "":
			return nil, false, nil
		case "fault":
			return nil, false, errors.New("the API is away")
		default:
			return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, true, nil
		}
	})
	allowed := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch right := a.GetVerb() + " " + a.GetResource() + "/" + a.GetSubresource() + " " + a.GetName(); {
		case a.GetUser().GetName() == "broken":
			return authorizer.DecisionNoOpinion, "", errors.New("the API is away")
		case a.GetUser().GetName() == "good" && right == "get nodes/metrics node-1":
			return authorizer.DecisionAllow, "", nil
		case a.GetUser().GetName() == "admin" && right == "get nodes/proxy node-1":
			return authorizer.DecisionAllow, "", nil
		default:
			return authorizer.DecisionNoOpinion, right, nil
		}
	})
	return server.NewKubeletAuth(known, server.NewNodeAuthorizerAttributesGetter("node-1"), allowed, nil)
}

// says is a handler that answers with it.
func says(answer string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
}

// TestFront asks a server of upstream's kind, by both versions of HTTP, many times at once
// right after its start.
func TestFront(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			chosen := 0
			var mu sync.Mutex
			config := &tls.Config{Certificates: certificate.TLS.Certificates, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				mu.Lock()
				defer mu.Unlock()
				chosen++
				return nil, nil
			}}
			f := &front{paths: map[string]http.Handler{"/metrics": says("ours"), "/metrics/dns": says("dns"), recorder.Path: says("recording")}, auth: callers()}
			f.standBefore(config)
			upstream := &http.Server{Handler: says("upstream's"), TLSConfig: config}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- upstream.ServeTLS(listener, "", "") }()
			defer func() {
				_ = upstream.Close()
				<-ended
			}()

			ask := func(path, token string) (int, string, error) {
				transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: version == "HTTP/2.0"}
				defer transport.CloseIdleConnections()
				request, err := http.NewRequest(http.MethodGet, "https://"+listener.Addr().String()+path, nil)
				if err != nil {
					return 0, "", err
				}
				if token != "" {
					request.Header.Set("Authorization", token)
				}
				answer, err := transport.RoundTrip(request)
				if err != nil {
					return 0, "", err
				}
				defer answer.Body.Close()
				if answer.Proto != version {
					return 0, "", errors.New("it spoke " + answer.Proto)
				}
				body, err := io.ReadAll(answer.Body)
				return answer.StatusCode, string(body), err
			}
			cases := []struct {
				path, token string
				status      int
				want        string
			}{
				{"/metrics", "good", 200, "ours"},
				{"/metrics/dns", "good", 200, "dns"},
				{"/metrics/cadvisor", "good", 200, "upstream's"},
				{"/healthz", "", 200, "upstream's"},
				{"/metrics", "", 401, "Unauthorized\n"},
				{recorder.Path, "admin", 200, "recording"},
				{recorder.Path, "good", 403, "Forbidden\n"},
				{recorder.Path, "", 401, "Unauthorized\n"},
				{"/metrics", "fault", 401, "Unauthorized\n"},
				{"/metrics/dns", "other", 403, "Forbidden\n"},
				{"/metrics/dns", "broken", 500, "Internal Server Error\n"},
			}
			var asking sync.WaitGroup
			for range 4 {
				for _, c := range cases {
					asking.Go(func() {
						if status, body, err := ask(c.path, c.token); err != nil || status != c.status || body != c.want {
							t.Errorf("%s with %q: %d, %q, %v, want %d, %q", c.path, c.token, status, body, err, c.status, c.want)
						}
					})
				}
			}
			asking.Wait()
			if chosen != 4*len(cases) {
				t.Errorf("the configuration of TLS was chosen %d times", chosen)
			}
		})
	}
}
