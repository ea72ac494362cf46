package registries

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// TestIrregular gives paths of files that would block a reader. They must be refused.
func TestIrregular(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(fifo, nil, func(string) {}); err == nil || !strings.Contains(err.Error(), fifo+": this is a FIFO") {
		t.Errorf("registries.yaml: %v", err)
	}
	if secrets := Secrets(fifo); len(secrets) != 0 {
		t.Errorf("got secrets %v from a FIFO, want none", secrets)
	}
	for _, setting := range []string{"ca_file: " + fifo, "cert_file: " + fifo, "cert_file: /dev/null\n      key_file: " + fifo} {
		_, err := parse([]byte("configs:\n  a:\n    tls:\n      " + setting + "\n"))
		if err == nil || !strings.Contains(err.Error(), ": this is a ") {
			t.Errorf("%s: got error %v, want that the file is not a regular one", setting, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"syntax":       {"mirrors:\n  docker.io: [", "line 2"},
		"unknown":      {"mirrors:\n  docker.io:\n    endpoints: [x]\n", "line 3: field endpoints not found"},
		"two":          {"mirrros: {}\nconfigs:\n  a:\n    tls: {ca: x}\n", "line 1: field mirrros not found"},
		"address":      {"mirrors:\n  docker.io:\n    endpoint:\n      - ftp://x\n", `line 4: endpoint "ftp://x" is not an address such as https://`},
		"a password":   {"mirrors:\n  docker.io:\n    endpoint: [\"https://user:%zz@x\"]\n", "line 3: endpoint has a user or a password in it: write"},
		"no group":     {"mirrors:\n  docker.io:\n    rewrite:\n      \"^library/.*\": mirror/$1\n", `line 4: rewrite "mirror/$1": "^library/.*" has no group 1`},
		"glued group":  {"mirrors:\n  docker.io:\n    rewrite:\n      \"(.*)\": mirror/$1_x\n", "has no group 1_x"},
		"named group":  {"mirrors:\n  docker.io:\n    rewrite:\n      \"(?P<a>.*)\": \"${b}\"\n", "has no group b"},
		"pattern":      {"mirrors:\n  docker.io:\n    rewrite:\n      \"(x\": y\n", "line 4: rewrite: error parsing regexp"},
		"credentials":  {"configs:\n  a:\n    auth: {user: x}\n", "line 3: field user not found; auth can have"},
		"base64":       {"configs:\n  a:\n    auth: {auth: \"%\"}\n", "line 3: auth is not the base64 of USER:PASSWORD"},
		"authority":    {"configs:\n  a:\n    tls:\n      ca_file: /nowhere/ca.crt\n", "line 4: ca_file: stat /nowhere/ca.crt: no such file"},
		"tls":          {"configs:\n  a:\n    tls:\n      ca: x\n", "line 4: field ca not found; tls can have ca_file"},
		"key":          {"configs:\n  a:\n    tls:\n      cert_file: /nowhere/tls.crt\n", "line 4: cert_file and key_file: stat"},
		"a URL":        {"configs:\n  https://a:5000:\n    auth: {username: x, password: y}\n", `line 2: "https://a:5000" is not a registry's HOST or HOST:PORT`},
		"not a key":    {"just text", "line 1"},
		"second fault": {"configs:\n  a:\n    tls:\n      ca: x\n  b:\n    auth: {user: x}\n", "line 6: field user"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// TestSecrets finds secrets in a file that has faults, too.
func TestSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registries.yaml")
	if got := Secrets(file); len(got) > 0 {
		t.Errorf("got secrets %q without a file, want none", got)
	}
	const text = `
mirrors: {docker.io: [wrong]}
configs:
  a: {auth: {username: me, password: hush}, tls: wrong}
  b: {auth: {auth: bWU6aHVzaDI=}}
  c: {auth: {identity_token: hush3}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Secrets(file)
	slices.Sort(got)
	if want := []string{"bWU6aHVzaDI=", "hush", "hush2", "hush3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHosts checks which hosts are asked, in which order.
func TestHosts(t *testing.T) {
	const file = `
mirrors:
  docker.io:
    endpoint: [mirror.test, "http://plain.test:5000/", "https://proxy.test/v2/hub/", mirror.test]
  "*":
    endpoint: ["localhost:5000"]
  itself.test:
    endpoint: [mirror.test, "https://itself.test"]
  alone.test:
`
	s, err := parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	for registry, want := range map[string][]string{
		"docker.io":   {"https://mirror.test/v2", "http://plain.test:5000/v2", "https://proxy.test/v2/hub", "https://registry-1.docker.io/v2"},
		"other.test":  {"http://localhost:5000/v2", "https://other.test/v2"},
		"itself.test": {"https://mirror.test/v2", "https://itself.test/v2"},
		"alone.test":  {"https://alone.test/v2"},
	} {
		hosts, err := s.hosts(t.Context(), Pull{Credentials: none}, registry, false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, h := range hosts {
			got = append(got, h.Scheme+"://"+h.Host+h.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: asks %v, want %v", registry, got, want)
		}
	}
}

// TestMirrorsOnly asks only the mirrors of a registry that has some.
func TestMirrorsOnly(t *testing.T) {
	s, err := parse([]byte("mirrors: {docker.io: {endpoint: [mirror.test]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for registry, want := range map[string]string{"docker.io": "mirror.test", "other.test": "other.test"} {
		hosts, err := s.hosts(t.Context(), Pull{Credentials: none}, registry, true)
		if err != nil || len(hosts) != 1 || hosts[0].Host != want {
			t.Errorf("%s: got %v, %v", registry, hosts, err)
		}
	}
}

func none(string) (string, string, error) { return "", "", nil }

const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}`

// startRegistry serves one manifest over TLS to one user. It returns its address and the file of
// its certificate authority.
func startRegistry(t *testing.T, path, user, password string) (address, authority string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, secret, _ := r.BasicAuth()
		switch {
		case name != user || secret != password:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path != path && r.URL.Path != path[:strings.LastIndex(path, "/")+1]+digest.FromString(manifest).String():
			http.NotFound(w, r)
		default:
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", digest.FromString(manifest).String())
			_, _ = io.WriteString(w, manifest)
		}
	}))
	t.Cleanup(server.Close)
	authority = filepath.Join(t.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(server.URL, "https://"), authority
}

// TestPull pulls through a mirror that has another name for the repository, its own certificate
// authority and a password. It then changes the file without a restart.
func TestPull(t *testing.T) {
	address, authority := startRegistry(t, "/v2/proxy/app/blobs-of/manifests/1", "reader", "secret")
	file := filepath.Join(t.TempDir(), "registries.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.NewReplacer("MIRROR", address, "CA", authority).Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(file, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	pull := Pull{Reference: "registry.test/app/blobs-of:1", Credentials: none}
	if fetcher, err := r.Fetcher(pull); fetcher != nil || err != nil {
		t.Errorf("got fetcher %v, %v without a file, want none", fetcher, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	running, done := make(chan struct{}), make(chan error)
	go func() { done <- r.Run(ctx, func() { close(running) }) }()
	<-running

	const good = `
mirrors:
  registry.test:
    endpoint: ["https://MIRROR"]
    rewrite:
      "^nothing": "else"
      "^app/(.*)": "proxy/app/$1"
configs:
  "MIRROR":
    auth: {username: reader, password: PASSWORD}
    tls: {ca_file: CA}
`
	write(strings.ReplaceAll(good, "PASSWORD", "secret"))
	for r.current.Load().mirror("registry.test") == nil {
		time.Sleep(time.Millisecond)
	}
	write("mirrors: [broken")
	fetcher, err := r.Fetcher(pull)
	if err != nil {
		t.Fatal(err)
	}
	name, found, err := fetcher.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := digest.FromString(manifest); found.Digest != want {
		t.Errorf("got %s, want %s", found.Digest, want)
	}
	from, err := fetcher.Fetcher(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	body, err := from.Fetch(t.Context(), found)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(body); err != nil || string(got) != manifest {
		t.Errorf("got %q, %v", got, err)
	}
	body.Close()

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	write(strings.ReplaceAll(good, "PASSWORD", "wrong"))
	r.reload()
	// The pod's own credentials do not replace the mirror's.
	pull.Credentials = func(string) (string, string, error) { return "reader", "secret", nil }
	if fetcher, err = r.Fetcher(pull); err != nil {
		t.Fatal(err)
	}
	if _, _, err := fetcher.Resolve(t.Context()); err == nil {
		t.Error("a pull with a wrong password succeeded")
	}
	write("mirrors: [broken")
	r.reload()
	if r.current.Load().mirror("registry.test") == nil {
		t.Error("a broken file removed the settings")
	}
}

// TestItself lists a registry as its own mirror, as is necessary for a registry without TLS. Then
// the pod's credentials come before the operator's, and credentials of other hosts are not sent.
func TestItself(t *testing.T) {
	address, authority := startRegistry(t, "/v2/app/manifests/1", "reader", "secret")
	file := filepath.Join(t.TempDir(), "registries.yaml")
	text := strings.NewReplacer("REGISTRY", address, "CA", authority).Replace(`
mirrors:
  "REGISTRY":
    endpoint: ["https://REGISTRY"]
configs:
  "REGISTRY":
    auth: {username: reader, password: wrong}
    tls: {ca_file: CA}
  other.test:
    auth: {username: reader, password: secret}
`)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := New(file, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	for password, works := range map[string]bool{"": false, "secret": true} {
		fetcher, err := r.Fetcher(Pull{Reference: address + "/app:1", Credentials: func(string) (string, string, error) { return "reader", password, nil }})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := fetcher.Resolve(t.Context()); (err == nil) != works {
			t.Errorf("resolve with the pod's password %q: got error %v, want success %t", password, err, works)
		}
	}
}

// answer is what a registry, or the other nodes, answer to a request for a manifest.
type answer int

func (a answer) RoundTrip(request *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	if a == http.StatusOK {
		recorder.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		recorder.Header().Set("Docker-Content-Digest", digest.FromString(manifest).String())
		_, _ = io.WriteString(recorder, manifest)
	} else {
		recorder.WriteHeader(int(a))
	}
	response := recorder.Result()
	response.Request, response.ContentLength = request, int64(recorder.Body.Len())
	return response, nil
}

// TestPeers checks that other nodes are asked what a tag stands for only while the registry does
// not answer.
func TestPeers(t *testing.T) {
	for name, test := range map[string]struct {
		registry int // 0: not reachable, 1: does not answer
		peers    answer
		want     string // the error, or empty if the image is found
	}{
		"no registry":               {0, 200, ""},
		"a broken one":              {503, 200, ""},
		"one that has had enough":   {429, 200, ""},
		"one that does not have it": {404, 200, "not found"},
		"one that refuses":          {403, 200, "403 Forbidden"},
		"one that hangs":            {1, 200, ""},
		"nobody":                    {0, 404, "the servers of this cluster do not have the image either"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.registry == 1 {
					<-r.Context().Done()
					return
				}
				w.WriteHeader(test.registry)
			}))
			defer server.Close()
			if test.registry == 0 {
				server.Close()
			}
			file := filepath.Join(t.TempDir(), "registries.yaml")
			text := "mirrors: {registry.test: {endpoint: [\"" + server.URL + "\"]}}"
			// The registry is listed as its own mirror, so that it is asked at the test's address.
			text = strings.ReplaceAll(text, "registry.test", "\""+server.Listener.Addr().String()+"\"")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := New(file, test.peers, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			if test.registry == 1 {
				r.patience = time.Millisecond
			}
			fetcher, err := r.Fetcher(Pull{Reference: server.Listener.Addr().String() + "/app:1", Credentials: none})
			if err != nil {
				t.Fatal(err)
			}
			_, found, err := fetcher.Resolve(t.Context())
			switch {
			case test.want == "" && (err != nil || found.Digest != digest.FromString(manifest)):
				t.Errorf("got %v, %v", found, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
