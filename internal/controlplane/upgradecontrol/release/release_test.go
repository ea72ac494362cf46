package release

import (
	"bytes"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/testutil"
)

const version = "v1.37.3+kedge.1"

// site is a place of releases. Its files are by path.
type site struct {
	*httptest.Server
	files map[string][]byte
	// asked counts the requests, and faults are answers that come first.
	asked  int
	faults []int
}

func newSite(t *testing.T, secure bool) *site {
	t.Helper()
	s := &site{files: map[string][]byte{}}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked++
		if len(s.faults) > 0 {
			w.WriteHeader(s.faults[0])
			s.faults = s.faults[1:]
			return
		}
		content, there := s.files[r.URL.Path]
		if target, is := strings.CutPrefix(string(content), "redirect "); is {
			http.Redirect(w, r, target, http.StatusFound)
			return
		}
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content)
	})
	if s.Server = httptest.NewServer(handler); secure {
		s.Close()
		s.Server = httptest.NewTLSServer(handler)
	}
	t.Cleanup(s.Close)
	return s
}

// source returns the source of the site.
func (s *site) source(t *testing.T, key []byte) *Source {
	t.Helper()
	source, err := newSource(s.URL+"/", key)
	if err != nil {
		t.Fatal(err)
	}
	source.wait = 0
	if s.Certificate() != nil {
		source.http.Transport = s.Client().Transport
	}
	return source
}

// publish puts a release there, with archives. sign may be nil.
func (s *site) publish(executables map[string]string, sign crypto.Signer) {
	var sums bytes.Buffer
	add := func(name string, content []byte) {
		sum := sha256.Sum256(content)
		fmt.Fprintf(&sums, "%x  %s\n", sum, name)
		s.files["/"+version+"/"+name] = content
	}
	for name, content := range executables {
		add(name, []byte(content))
		if name != "kedge-armv7" {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			_, _ = io.WriteString(w, content)
			_ = w.Close()
			add(name+".gz", packed.Bytes())
			delete(s.files, "/"+version+"/"+name)
		}
	}
	s.files["/"+version+"/SHA256SUMS"] = sums.Bytes()
	if sign != nil {
		digest := sha256.Sum256(sums.Bytes())
		signature, err := sign.Sign(rand.Reader, digest[:], crypto.SHA256)
		if err != nil {
			panic(err)
		}
		s.files["/"+version+"/SHA256SUMS.sig"] = signature
	}
}

func publicKey(t *testing.T, signer crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// get returns an executable, as long as its digest is the one of the release.
func get(t *testing.T, source *Source, architecture string) (string, error) {
	t.Helper()
	r, err := source.Find(t.Context(), version)
	if err != nil {
		return "", err
	}
	digest, err := r.Digest(architecture)
	if err != nil {
		return "", err
	}
	var content []byte
	err = r.Get(t.Context(), architecture, func(body io.Reader) (err error) {
		content, err = io.ReadAll(body)
		if sum := sha256.Sum256(content); err == nil && hex.EncodeToString(sum[:]) != digest {
			err = errors.New("another digest")
		}
		return err
	})
	return string(content), err
}

func TestGet(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newSite(t, true)
	s.publish(map[string]string{"kedge-amd64": "for amd64", "kedge-armv7": "for arm"}, nil)
	source := s.source(t, nil)
	for architecture, want := range map[string]string{"amd64": "for amd64", "arm": "for arm"} {
		if got, err := get(t, source, architecture); err != nil || got != want {
			t.Errorf("%s: got %q, %v", architecture, got, err)
		}
	}
	for _, architecture := range []string{"riscv64", "amd64.gz"} {
		if _, err := get(t, source, architecture); err == nil || !strings.Contains(err.Error(), "has no kedge-"+architecture) {
			t.Errorf("%s: got %v", architecture, err)
		}
	}
	s.files["/"+version+"/kedge-amd64.gz"] = []byte("no archive")
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("a damaged archive: %v", err)
	}
	s.files["/"+version+"/kedge-armv7"] = []byte("another one")
	if _, err := get(t, source, "arm"); err == nil || !strings.Contains(err.Error(), "another digest") {
		t.Errorf("another executable: %v", err)
	}
}

// TestFaults has sources that answer wrongly at first, or always.
func TestFaults(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newSite(t, true)
	s.publish(map[string]string{"kedge-amd64": "for amd64"}, nil)
	source := s.source(t, nil)
	s.faults = []int{503, 429, 500}
	if got, err := get(t, source, "amd64"); err != nil || got != "for amd64" {
		t.Errorf("a source that recovers: %q, %v", got, err)
	}
	s.asked, s.faults = 0, []int{503, 503, 503, 503}
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "503") || s.asked != attempts {
		t.Errorf("a source that is broken is asked %d times: %v", s.asked, err)
	}
	s.asked, s.faults = 0, []int{404}
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "find release v1.37.3+kedge.1: get https://") || s.asked != 1 {
		t.Errorf("a release that is not there is asked for %d times: %v", s.asked, err)
	}
	s.files["/"+version+"/SHA256SUMS"] = make([]byte, maxText+1)
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("endless sums: %v", err)
	}
}

// TestSilence has a source that stops in the middle of an archive, and keeps the connection.
func TestSilence(t *testing.T) {
	testutil.CheckLeaks(t)
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		_, _ = io.WriteString(w, "some of it")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	source, err := newSource(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	source.wait, source.silence, source.http.Transport = 0, 50*time.Millisecond, server.Client().Transport
	defer server.Client().CloseIdleConnections()
	if _, err := source.Find(t.Context(), version); err == nil || !strings.Contains(err.Error(), "it has sent nothing for 50ms") || asked != attempts {
		t.Errorf("after %d requests: %v", asked, err)
	}
}

// TestRedirects follows redirects to https, and to nothing else.
func TestRedirects(t *testing.T) {
	testutil.CheckLeaks(t)
	s, plain := newSite(t, true), newSite(t, false)
	s.publish(map[string]string{"kedge-amd64": "for amd64"}, nil)
	s.files["/real"] = s.files["/"+version+"/SHA256SUMS"]
	s.files["/"+version+"/SHA256SUMS"] = []byte("redirect /real")
	source := s.source(t, nil)
	source.http.CheckRedirect = onlyTLS
	if got, err := get(t, source, "amd64"); err != nil || got != "for amd64" {
		t.Errorf("got %q, %v", got, err)
	}
	s.files["/"+version+"/SHA256SUMS"] = []byte("redirect " + plain.URL + "/x")
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "only https:// is followed") || plain.asked > 0 {
		t.Errorf("got %v", err)
	}
	s.files["/"+version+"/SHA256SUMS"] = []byte("redirect /" + version + "/SHA256SUMS")
	if _, err := get(t, source, "amd64"); err == nil || !strings.Contains(err.Error(), "too often") {
		t.Errorf("got %v", err)
	}
}

// TestSignatures has sources over http, which need a key.
func TestSignatures(t *testing.T) {
	testutil.CheckLeaks(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key    crypto.Signer
		signer crypto.Signer
		change func(*site)
		want   string
	}{
		"RSA":           {rsaKey, rsaKey, nil, ""},
		"ECDSA":         {ecKey, ecKey, nil, ""},
		"another key":   {rsaKey, ecKey, nil, "is not by the key"},
		"no signature":  {rsaKey, nil, nil, "must be signed"},
		"changed sums":  {ecKey, ecKey, func(s *site) { s.files["/"+version+"/SHA256SUMS"][0] ^= 1 }, "is not by the key"},
		"no real one":   {ecKey, ecKey, func(s *site) { s.files["/"+version+"/SHA256SUMS.sig"] = []byte("x") }, "is not by the key"},
		"an empty file": {rsaKey, rsaKey, func(s *site) { s.files["/"+version+"/SHA256SUMS.sig"] = nil }, "is not by the key"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, false)
			s.publish(map[string]string{"kedge-amd64": "for amd64"}, test.signer)
			if test.change != nil {
				test.change(s)
			}
			got, err := get(t, s.source(t, publicKey(t, test.key)), "amd64")
			if test.want == "" && (err != nil || got != "for amd64") || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestNew(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		base string
		key  []byte
		want string
	}{
		"the default":       {"", nil, ""},
		"http without key":  {"http://192.0.2.1/x", nil, "anybody on the way"},
		"a file":            {"file:///x", nil, "not a URL"},
		"a word":            {"releases", nil, "not a URL"},
		"a broken URL":      {"https://[", nil, "missing"},
		"no PEM":            {"https://192.0.2.1", []byte("x"), "no public key in PEM"},
		"an empty key":      {"https://192.0.2.1", []byte{}, "no public key in PEM"},
		"no key in PEM":     {"https://192.0.2.1", []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"), "read the key"},
		"a key of Ed25519":  {"https://192.0.2.1", publicKey(t, ed), "RSA or ECDSA"},
		"a URL with a path": {"https://192.0.2.1/a/b/", nil, ""},
	} {
		_, err := newSource(test.base, test.key)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "release.pem")
	if key, err := readKey(path); key != nil || err != nil {
		t.Errorf("no key: %q, %v", key, err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := readKey(path); key == nil || err != nil {
		t.Errorf("an empty key is %v, %v, as if there was none", key, err)
	}
}

// TestPasswords has URLs with a password. No message has it.
func TestPasswords(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newSite(t, true)
	s.files["/stable"] = []byte("<html>")
	s.files["/gone/"+version+"/SHA256SUMS"] = []byte("redirect http://user:secret@192.0.2.1/x")
	s.files["/empty/"+version+"/SHA256SUMS"] = nil
	with := func(path string) *Source {
		source := s.source(t, nil)
		source.base = strings.Replace(s.URL, "https://", "https://user:secret@", 1) + path
		source.http.CheckRedirect = onlyTLS
		return source
	}
	for _, path := range []string{"", "/gone", "/empty"} {
		source := with(path)
		if _, err := get(t, source, "amd64"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", path, err)
		}
	}
	source := with("")
	if _, err := source.Channel(t.Context(), source.base+"/stable"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a channel: %v", err)
	}
	for _, base := range []string{"http://user:secret@192.0.2.1", "ftp://user:secret@192.0.2.1", "https://user:secret@[", "https://user:secret@192.0.2.1/%zz"} {
		if _, err := newSource(base, nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", base, err)
		}
	}
}

func TestChannel(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newSite(t, true)
	source := s.source(t, nil)
	for text, want := range map[string]string{
		version + "\nand more\n":      version,
		" " + version + "\r\n":        version,
		version:                       version,
		"":                            "",
		"<html>":                      "",
		"v1/../../x":                  "",
		"v" + strings.Repeat("1", 70): "",
	} {
		s.files["/stable"] = []byte(text)
		got, err := source.Channel(t.Context(), s.URL+"/stable")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	if _, err := source.Channel(t.Context(), "http://192.0.2.1/stable"); err == nil || !strings.Contains(err.Error(), "anybody") {
		t.Errorf("a channel that anybody can change: %v", err)
	}
}
