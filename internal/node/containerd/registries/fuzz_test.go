package registries

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/distribution/reference"
)

// FuzzParse reads anything as a registries.yaml. If the text is accepted, each mirror has an
// address. If it is refused, the error has no password in it.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"",
		"mirrors:\n  docker.io:\n    endpoint: [mirror.test, \"http://plain.test:5000/\"]\n    rewrite: {\"^library/(.*)\": \"hub/$1\"}\n",
		"mirrors: {\"*\": {endpoint: [\"localhost:5000\", \"[::1]:5000\"]}}\nconfigs: {\"*\": {auth: {username: me, password: a-password}}}\n",
		"configs:\n  a:\n    auth: {auth: bWU6YS1wYXNzd29yZA==}\n    tls: {insecure_skip_verify: true}\n",
		"configs:\n  a:\n    auth: a-password\n    tls: {ca: x}\n",
		"configs: {a: {auth: {identity_token: a-password, user: b}}}\n",
		"mirrors: {a: {endpoint: [\"https://me:a-password@host\"], rewrite: {\"(\": x}}}\n",
		"a: &a [*a, *a]\nmirrors: *a\n",
		"mirrors: {a: null}\nconfigs: {a: null}\n",
	} {
		f.Add(text, "docker.io")
	}
	file := filepath.Join(f.TempDir(), "registries.yaml")
	f.Fuzz(func(t *testing.T, text, registry string) {
		if strings.Contains(text, "/dev") || strings.Contains(text, "/proc") {
			return // parse would read the files that the text names
		}
		if name, err := reference.ParseNormalizedNamed(registry + "/a/b"); err != nil || reference.Domain(name) != registry {
			return // no image can have such a registry
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		secrets := Secrets(file)
		s, err := parse([]byte(text))
		if err != nil {
			for _, secret := range secrets {
				if len(secret) > len("a-password")-1 && strings.Count(text, secret) == 1 && strings.Contains(err.Error(), secret) {
					t.Errorf("%q is told by %v", secret, err)
				}
			}
			return
		}
		hosts, err := s.hosts(t.Context(), Pull{Credentials: none}, registry, false)
		if err != nil {
			return
		}
		for _, host := range hosts {
			if host.Client == nil || host.Scheme != "https" && host.Scheme != "http" || host.Host == "" {
				t.Errorf("%q is looked for at %q, %q", registry, host.Scheme, host.Host)
			}
		}
	})
}

// sent keeps the request that was sent.
type sent struct{ *http.Request }

func (s *sent) RoundTrip(request *http.Request) (*http.Response, error) {
	s.Request = request
	return nil, http.ErrAbortHandler
}

// FuzzRewrite asks a mirror for any image, with any rewrite. The request must go to that mirror and
// for that object, and have the repository's new name and nothing else.
func FuzzRewrite(f *testing.F) {
	f.Add("^library/(.*)", "hub/$1", "library/busybox", "latest")
	f.Add("(.*)", "$1$1$1", "a/manifests/b", "sha256:0")
	f.Add(".", "", "a", "1")
	f.Add("^", "../", "a", "1")
	f.Add("a", "?x=#y%2f", "a", "1")
	f.Add("a", "$100${name}\xff", "a", "1")
	f.Fuzz(func(t *testing.T, pattern, with, repository, tag string) {
		compiled, err := regexp.Compile(pattern)
		// Names that a pod can ask for have been checked before.
		name, nameErr := reference.ParseNormalizedNamed("registry.test/" + repository)
		if err != nil || nameErr != nil || len(with) > 1<<10 || !regexp.MustCompile(`^[\w][\w.-]{0,127}$`).MatchString(tag) {
			return
		}
		rules := rewrites{{compiled, with}}
		path := "/v2/" + reference.Path(name) + "/manifests/" + tag
		request := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "mirror.test", Path: path, RawQuery: "ns=registry.test"}}
		var got sent
		_, _ = (&rewriter{next: &got, prefix: "/v2/", rewrites: rules}).RoundTrip(request)
		if got.URL.Scheme != "https" || got.URL.Host != "mirror.test" || got.URL.RawQuery != "ns=registry.test" || got.URL.User != nil {
			t.Errorf("%s is asked for at %s", path, got.URL)
		}
		if want := "/v2/" + rules.apply(reference.Path(name)) + "/manifests/" + tag; got.URL.Path != want {
			t.Errorf("%s is asked for as %q, want %q", path, got.URL.Path, want)
		}
		if again, err := url.Parse(got.URL.String()); err != nil || again.Path != got.URL.Path || again.Host != "mirror.test" || again.RawQuery != "ns=registry.test" {
			t.Errorf("%s is written as %s: %v", path, got.URL, err)
		}
		if request.URL.Path != path {
			t.Errorf("the caller's request is changed to %s", request.URL)
		}
	})
}
