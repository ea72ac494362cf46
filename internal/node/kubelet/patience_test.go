package kubelet

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// refusing answers 403 a number of times, and 200 after that. It keeps the bodies of the requests.
type refusing struct {
	times  int
	bodies []string
}

func (r *refusing) RoundTrip(request *http.Request) (*http.Response, error) {
	body := ""
	if request.Body != nil {
		data, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		body = string(data)
	}
	r.bodies = append(r.bodies, body)
	status := http.StatusOK
	if len(r.bodies) <= r.times {
		status = http.StatusForbidden
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("x"))}, nil
}

func TestPatience(t *testing.T) {
	const always = 1000
	for name, c := range map[string]struct {
		method, path, body string
		refusals           int
		status, requests   int
	}{
		"watch of a config map": {
			method: "GET", path: "/api/v1/namespaces/a/configmaps?watch=true", refusals: 2, status: 200, requests: 3,
		},
		"claim": {
			method: "GET", path: "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c", refusals: 1, status: 200, requests: 2,
		},
		"token, with its body": {
			method: "POST", path: "/api/v1/namespaces/a/serviceaccounts/b/token", body: "request", refusals: 1, status: 200, requests: 2,
		},
		"refused for good": {
			method: "GET", path: "/api/v1/namespaces/a/secrets/s", refusals: always, status: 403, requests: 8,
		},
		"allowed":          {method: "GET", path: "/api/v1/namespaces/a/secrets/s", status: 200, requests: 1},
		"pod":              {method: "GET", path: "/api/v1/namespaces/a/pods/p", refusals: 1, status: 403, requests: 1},
		"written":          {method: "PUT", path: "/api/v1/namespaces/a/secrets/s", refusals: 1, status: 403, requests: 1},
		"all of a cluster": {method: "GET", path: "/api/v1/secrets", refusals: 1, status: 403, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), c.method, "https://api"+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			server := &refusing{times: c.refusals}
			response, err := patience{server}.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != c.status || len(server.bodies) != c.requests {
				t.Errorf("status %d after %d requests, want %d after %d", response.StatusCode, len(server.bodies), c.status, c.requests)
			}
			for _, body := range server.bodies {
				if body != c.body {
					t.Errorf("sent %q, want %q", body, c.body)
				}
			}
		})
	}
}
