package inprocess

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func client(handler http.HandlerFunc) *http.Client {
	return &http.Client{Transport: NewTransport(handler, "jane", "admins")}
}

func TestIdentity(t *testing.T) {
	var got string
	c := client(func(_ http.ResponseWriter, r *http.Request) {
		r = r.WithContext(authenticator.WithAudiences(r.Context(), authenticator.Audiences{"api"}))
		response, ok, err := Authenticator().AuthenticateRequest(r)
		if !ok || err != nil {
			t.Errorf("AuthenticateRequest() = %v, %v", ok, err)
			return
		}
		got = fmt.Sprint(response.User.GetName(), " ", response.User.GetGroups(), " ", response.Audiences)
	})
	if _, err := c.Get("http://api/"); err != nil {
		t.Fatal(err)
	}
	if want := "jane [admins system:authenticated] [api]"; got != want {
		t.Errorf("identity is %s, want %s", got, want)
	}

	stranger, _ := http.NewRequest(http.MethodGet, "http://api/", nil)
	if _, ok, _ := Authenticator().AuthenticateRequest(stranger); ok {
		t.Error("a request of no transport was authenticated")
	}
}

// TestRequest wants the handler to get the same request as from a server, and the
// caller's request to stay unchanged.
func TestRequest(t *testing.T) {
	type key struct{}
	c := client(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.URL, " ", r.Host, " ", r.ProtoMajor, " ", r.RemoteAddr, " ",
			r.ContentLength, " ", string(body), " ", r.Context().Value(key{}))
		r.Header.Del("Authorization")
	})
	ctx := context.WithValue(context.Background(), key{}, "secret")
	request, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://api/v1/pods?limit=1", strings.NewReader("pod"))
	request.Header.Set("Authorization", "Bearer x")
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(body), "POST /v1/pods?limit=1 /v1/pods?limit=1 api 2 127.0.0.1:0 3 pod <nil>"; got != want {
		t.Errorf("handler saw %q, want %q", got, want)
	}
	if request.Header.Get("Authorization") == "" {
		t.Error("the handler changed the caller's header")
	}
}

func TestResponse(t *testing.T) {
	tests := map[string]struct {
		method  string
		handler http.HandlerFunc
		status  int
		body    string
	}{
		"nothing written":   {handler: func(http.ResponseWriter, *http.Request) {}, status: 200},
		"implicit status":   {handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, status: 200, body: "hello"},
		"first status wins": {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); w.WriteHeader(200) }, status: 404},
		"informational": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(201)
		}, status: 201},
		"no content": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("Write() error is %v", err)
			}
		}, status: 204},
		"head": {method: http.MethodHead, handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, status: 200},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			request, _ := http.NewRequest(test.method, "http://api/", nil)
			response, err := client(test.handler).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != test.status || string(body) != test.body {
				t.Errorf("got %d %q, %v; want %d %q", response.StatusCode, body, err, test.status, test.body)
			}
		})
	}
}

// TestStream reads a response like a watch: events arrive as they are written,
// and the handler ends when the caller closes the body.
func TestStream(t *testing.T) {
	events, ended := make(chan string), make(chan error, 1)
	c := client(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		for {
			select {
			case event := <-events:
				fmt.Fprintln(w, event)
				w.(http.Flusher).Flush()
			case <-w.(http.CloseNotifier).CloseNotify(): //nolint:staticcheck // the API server's filters use it
				ended <- context.Cause(r.Context())
				return
			}
		}
	})
	response, err := c.Get("http://api/watch") // returns at the first Flush
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	for _, want := range []string{"ADDED", "DELETED"} {
		events <- want
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q, want %q", lines.Text(), want)
		}
	}
	response.Body.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("handler's context ended with %v", err)
	}
}

func TestCancel(t *testing.T) {
	t.Run("before the header", func(t *testing.T) {
		ended := make(chan struct{})
		c := client(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); close(ended) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
		if _, err := c.Do(request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do() error is %v", err)
		}
		<-ended
	})
	t.Run("while streaming", func(t *testing.T) {
		ended := make(chan error, 1)
		c := client(func(w http.ResponseWriter, _ *http.Request) {
			var err error
			for err == nil {
				_, err = io.WriteString(w, "event\n")
			}
			ended <- err
		})
		ctx, cancel := context.WithCancel(context.Background())
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
		response, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		cancel()
		if _, err := io.ReadAll(response.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("reading ended with %v", err)
		}
		<-ended
	})
}

// TestUntil ends the requests of a transport, and wants later requests to fail.
func TestUntil(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	c := &http.Client{Transport: Until(ctx, NewTransport(handler, "user"))}
	response, err := c.Get("http://api/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	cancel()
	if _, err := io.ReadAll(response.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("reading ended with %v", err)
	}
	if _, err := c.Get("http://api/"); !errors.Is(err, context.Canceled) {
		t.Errorf("a request after the end: %v", err)
	}
}

func TestPanic(t *testing.T) {
	for name, value := range map[string]any{"abort": http.ErrAbortHandler, "fault": "oops"} {
		t.Run(name+" before the header", func(t *testing.T) {
			if _, err := client(func(http.ResponseWriter, *http.Request) { panic(value) }).Get("http://api/"); err == nil {
				t.Error("no error")
			}
		})
		t.Run(name+" while streaming", func(t *testing.T) {
			response, err := client(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "half")
				panic(value)
			}).Get("http://api/")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if string(body) != "half" || err == nil {
				t.Errorf("read %q, %v", body, err)
			}
		})
	}
}

func TestUpgradeIsRefused(t *testing.T) {
	request, _ := http.NewRequest(http.MethodPost, "http://api/exec", nil)
	request.Header.Set("Upgrade", "websocket")
	if _, err := client(nil).Do(request); err == nil || !strings.Contains(err.Error(), "cannot be upgraded") {
		t.Errorf("Do() error is %v", err)
	}
}

// TestNoGoroutineIsLeft fails if a goroutine outlives its synctest bubble.
func TestNoGoroutineIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		for range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
			response, err := c.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			cancel()
		}
	})
}
