package executables

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// content stands for an executable, and digest for its digest.
const (
	content = "kedge"
	digest  = "2bd4efbd4b4e4fe1bb9fd2ca7a6d4ac6f3ed1c54d5e8e0e4ac7f2b0a4f7ffbd6"
)

// serve starts servers that answer in their own way, and returns a Source of them.
func serve(t *testing.T, answers ...http.HandlerFunc) *Source {
	t.Helper()
	var addresses []string
	for _, answer := range answers {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != upgrades.ExecutablePath+digest {
				t.Errorf("asked for %s", r.URL)
			}
			answer(w, r)
		}))
		t.Cleanup(server.Close)
		addresses = append(addresses, server.Listener.Addr().String())
	}
	return &Source{
		Servers: func() []string { return addresses },
		TLS:     &tls.Config{InsecureSkipVerify: true},
	}
}

func has(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

func busy(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "busy", http.StatusServiceUnavailable)
}

// TestGet asks servers until one of them has what is wanted.
func TestGet(t *testing.T) {
	redirect := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }
	for name, test := range map[string]struct {
		servers []http.HandlerFunc
		fault   string
		none    bool
	}{
		"the third has it":        {servers: []http.HandlerFunc{http.NotFound, has("damaged"), has(content)}},
		"no server":               {none: true, fault: "no server has the executable"},
		"no server has it":        {servers: []http.HandlerFunc{http.NotFound, http.NotFound}, none: true, fault: "no server has the executable"},
		"one is busy":             {servers: []http.HandlerFunc{http.NotFound, busy}, fault: "it answers 503 Service Unavailable"},
		"it is somewhere else":    {servers: []http.HandlerFunc{redirect}, fault: "it answers 302 Found"},
		"all have something else": {servers: []http.HandlerFunc{has("damaged"), has("old")}, fault: "not damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			got := ""
			err := serve(t, test.servers...).Get(t.Context(), digest, func(from io.Reader) error {
				text, err := io.ReadAll(from)
				got = string(text)
				if got != content {
					err = errors.Join(err, fmt.Errorf("not %s", got))
				}
				return err
			})
			if test.fault == "" {
				if err != nil || got != content {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.fault) || errors.Is(err, fs.ErrNotExist) != test.none {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestSilence has a server that stops in the middle.
func TestSilence(t *testing.T) {
	testutil.CheckLeaks(t)
	source := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, content)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, has(content))
	source.silence = 50 * time.Millisecond
	var got []string
	err := source.Get(t.Context(), digest, func(from io.Reader) error {
		text, err := io.ReadAll(from)
		got = append(got, fmt.Sprint(string(text), " ", err))
		return err
	})
	if err != nil || len(got) != 2 || got[1] != "kedge <nil>" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestEndAfterSilence has a server that ends its answer because its client goes.
func TestEndAfterSilence(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reader, stop := Noisy(untilGone{ctx}, time.Millisecond, cancel)
	defer stop()
	if _, err := io.ReadAll(reader); err == nil || err.Error() != context.Cause(ctx).Error() {
		t.Errorf("the end of the answer is %v, want %v", err, context.Cause(ctx))
	}
}

// untilGone ends when its context does.
type untilGone struct{ ctx context.Context }

func (u untilGone) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, io.EOF
}

func TestWrite(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "kedge"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got, err := Write(file, strings.NewReader(""), 0); err != nil || got != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("the digest of nothing is %s, %v", got, err)
	}
	if _, err := Write(file, strings.NewReader(content), int64(len(content)-1)); err == nil {
		t.Error("it has too many bytes, and they are taken")
	}
}

func TestVersion(t *testing.T) {
	for name, test := range map[string]struct{ script, version, fault string }{
		"kedge":          {script: "[ \"$*\" = --version ] && echo kedge v1.38.0+kedge.1", version: "v1.38.0+kedge.1"},
		"leaves one":     {script: "echo kedge v1.38.0+kedge.1\nsleep 5 2>/dev/null &", fault: "it does not run here"},
		"fails":          {script: "echo no such library >&2\necho more >&2\nexit 127", fault: "exit status 127 no such library"},
		"something else": {script: "echo Python 3.11", fault: "it is not a kedge"},
		"no version":     {script: "echo kedge ../../etc", fault: "it is not a kedge"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kedge")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			got, err := Version(context.Background(), path)
			if got != test.version || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
