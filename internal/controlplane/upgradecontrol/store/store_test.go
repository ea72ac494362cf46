package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func newStore(t *testing.T, servers ...string) *Store {
	t.Helper()
	return New(Config{Folder: filepath.Join(t.TempDir(), "upgrade"), Servers: func() []string { return servers }})
}

func content(t *testing.T, s *Store, digest string) string {
	t.Helper()
	file, err := s.Open(digest)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPut(t *testing.T) {
	s := newStore(t)
	digest := digestOf("kedge")
	if _, err := s.Open(digest); !errors.Is(err, fs.ErrNotExist) || s.Size(digest) != 0 {
		t.Errorf("an empty store: %v", err)
	}
	if err := s.Put(digest, strings.NewReader("kedge")); err != nil || content(t, s, digest) != "kedge" || s.Size(digest) != 5 {
		t.Errorf("put: %v", err)
	}
	if err := s.Put(digest, strings.NewReader("other")); err == nil || !strings.Contains(err.Error(), "damaged, or another one") || content(t, s, digest) != "kedge" {
		t.Errorf("put another one: %v", err)
	}
	if err := s.Put("../x", strings.NewReader("")); err == nil {
		t.Error("a name that is no digest is taken")
	}
	if _, err := s.Open("../upgrade/" + digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path is opened: %v", err)
	}
	broken := io.MultiReader(strings.NewReader("ked"), iotestErr{})
	if err := s.Put(digestOf("x"), broken); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	entries, err := os.ReadDir(s.cfg.Folder)
	if err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// TestFullDisk has an archive with more than fits beside the datastore.
func TestFullDisk(t *testing.T) {
	s := newStore(t)
	for free, want := range map[int64]string{reserve + 5: "", reserve + 4: "64 MiB are free in", reserve: "must stay free", 5: "0 MiB are free in"} {
		s.cfg.free = func(string) (int64, error) { return free, nil }
		err := s.Put(digestOf("kedge"), strings.NewReader("kedge"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: got %v", free, err)
		}
	}
	s.cfg.free = func(string) (int64, error) { return 0, fs.ErrPermission }
	if err := s.Put(digestOf("other"), strings.NewReader("other")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
	entries, err := os.ReadDir(s.cfg.Folder)
	if err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestKeep keeps what a Plan needs, and files of others.
func TestKeep(t *testing.T) {
	s := newStore(t)
	if err := errors.Join(s.Keep(nil), s.Clean()); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"a", "b"} {
		if err := s.Put(digestOf(text), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{unfinished + "1", "trial.json"} {
		if err := os.WriteFile(filepath.Join(s.cfg.Folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Keep(map[string]bool{digestOf("b"): true}), s.Clean()); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(s.cfg.Folder)
	if err != nil || len(entries) != 2 || entries[0].Name() != digestOf("b") || entries[1].Name() != "trial.json" {
		t.Errorf("left are %v, %v", entries, err)
	}
}

func TestTake(t *testing.T) {
	s := newStore(t)
	path := filepath.Join(t.TempDir(), "kedge")
	if err := os.WriteFile(path, []byte("kedge"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Take(path, digestOf("other")); err == nil || !strings.Contains(err.Error(), "take "+path) {
		t.Errorf("another digest: %v", err)
	}
	if _, err := os.Stat(s.cfg.Folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another digest is written: %v", err)
	}
	if err := s.Take(path, digestOf("kedge")); err != nil || content(t, s, digestOf("kedge")) != "kedge" {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := s.Take(path, digestOf("kedge")); err != nil {
		t.Errorf("what is there needs no file: %v", err)
	}
	if err := s.Take(path, digestOf("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Take(path, digestOf("x")); err == nil || !strings.Contains(err.Error(), "FIFO") {
		t.Errorf("a FIFO: %v", err)
	}
}

// TestFetch has servers without the executable, and one that has it. Package executables tests
// the rest.
func TestFetch(t *testing.T) {
	testutil.CheckLeaks(t)
	digest := digestOf("kedge")
	serve := func(status int, body string) *httptest.Server {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != upgrades.ExecutablePath+digest {
				t.Errorf("asked for %s", r.URL)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		return server
	}
	without, damaged, right := serve(404, ""), serve(200, "kedgf"), serve(200, "kedge")
	for name, test := range map[string]struct {
		servers []*httptest.Server
		want    string
	}{
		"all of them":     {[]*httptest.Server{without, damaged, right}, ""},
		"a damaged one":   {[]*httptest.Server{damaged}, "damaged"},
		"no other server": {nil, "file does not exist"},
	} {
		var addresses []string
		for _, server := range test.servers {
			addresses = append(addresses, server.Listener.Addr().String())
		}
		s := newStore(t, addresses...)
		s.others.TLS = &tls.Config{InsecureSkipVerify: true}
		err := s.Fetch(t.Context(), digest)
		if test.want == "" && (err != nil || content(t, s, digest) != "kedge") || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVersion runs scripts in the place of executables.
func TestVersion(t *testing.T) {
	s := newStore(t)
	for script, want := range map[string]string{
		"#!/bin/sh\necho kedge v1.37.3+kedge.1": "v1.37.3+kedge.1",
		"#!/bin/sh\necho kedge \"$1\"":          "not a kedge",
		"#!/bin/sh\necho Python 3":              "not a kedge",
		"#!/bin/sh\necho no >&2; exit 3":        "it does not run here: exit status 3 no",
		"nothing":                               "does not run here",
	} {
		if err := s.Put(digestOf(script), strings.NewReader(script)); err != nil {
			t.Fatal(err)
		}
		got, err := s.Version(context.WithoutCancel(t.Context()), digestOf(script))
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %q", script, got)
		}
	}
}

func TestArchitecture(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	digest := digestOf(string(self))
	if err := s.Put(digest, bytes.NewReader(self)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Architecture(digest); err != nil || got != runtime.GOARCH {
		t.Errorf("got %s, %v", got, err)
	}
	self[18] = 243 // EM_RISCV
	if _, err := ArchitectureOf(bytes.NewReader(self)); err == nil || !strings.Contains(err.Error(), "EM_RISCV") {
		t.Errorf("another processor: %v", err)
	}
	if _, err := ArchitectureOf(strings.NewReader("#!/bin/sh")); err == nil || !strings.Contains(err.Error(), "not an executable of Linux") {
		t.Errorf("a script: %v", err)
	}
}
