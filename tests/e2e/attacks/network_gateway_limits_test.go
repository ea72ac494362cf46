package attacks

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// slowPasswords is an Ingress of the tenant whose passwords take long to check.
const slowPasswords = `
apiVersion: v1
kind: Secret
metadata: {name: slow}
stringData: {auth: "somebody:%[1]s"}
---
apiVersion: v1
kind: Service
metadata: {name: slow}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: slow, annotations: {ingress.kedge.dev/auth-secret: slow}}
spec:
  rules:
  - host: slow.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: slow, port: {number: 80}}}}]}
`

// TestGatewaySilence has clients that begin a request and say no more. Each is told why it is sent away.
func TestGatewaySilence(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	var working sync.WaitGroup
	for what, request := range map[string]string{
		"a header that does not end":       "GET / HTTP/1.1\r\nHost: free.example.com\r\n",
		"a body that does not end":         "POST / HTTP/1.1\r\nHost: free.example.com\r\nContent-Length: 10\r\n\r\nbegun",
		"a body in chunks without its end": "POST / HTTP/1.1\r\nHost: free.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
	} {
		working.Go(func() {
			conn, err := s.dial("80")
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if status, body, err := ask(conn, request); status != http.StatusRequestTimeout {
				t.Errorf("%s gets %d %s, %v", what, status, body, err)
			}
		})
	}
	working.Wait()
}

// TestGatewayPasswords has a stranger who sends wrong passwords to an Ingress of a tenant whose hash is
// slow. The passwords of others are checked nevertheless.
func TestGatewayPasswords(t *testing.T) {
	t.Parallel()
	s := newStranger(t)
	newTenant(s.Cluster)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 12)
	if err != nil {
		t.Fatal(err)
	}
	apply(s.Cluster, "tenant", fmt.Sprintf(slowPasswords, hash))
	// This hash takes a turn, too, but a short one.
	fast, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: users}\nstringData: {auth: %q}\n", "somebody:"+string(fast)))
	wrong := func(i int) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "somebody:%d", i))
	}
	for host, path := range map[string]string{"slow.example.com": "/", "app.example.com": "/admin"} {
		s.Eventually(host+" to ask for a password", func() error {
			if status, body, err := s.plain(host, path, wrong(0)); status != http.StatusUnauthorized {
				return fmt.Errorf("it answers %d %s, %v", status, body, err)
			}
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	for i := range 100 {
		working.Go(func() {
			for ctx.Err() == nil {
				_, _, _ = s.plain("slow.example.com", "/", wrong(i))
			}
		})
	}
	s.Eventually("the flood to wait for turns", func() error {
		if status, _, err := s.plain("slow.example.com", "/", wrong(0)); status != http.StatusServiceUnavailable {
			return fmt.Errorf("it answers %d, %v", status, err)
		}
		return nil
	})
	for i := range 10 {
		if status, body, err := s.plain("app.example.com", "/admin", wrong(1000+i)); status != http.StatusUnauthorized {
			t.Errorf("during the flood, a wrong password of another namespace gets %d %s, %v", status, body, err)
		}
	}
	if status, body, err := s.plain("app.example.com", "/admin", "Authorization: Basic c29tZWJvZHk6c2VjcmV0"); status != http.StatusOK {
		t.Errorf("during the flood, the right password of another namespace gets %d %s, %v", status, body, err)
	}
}
