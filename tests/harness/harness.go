// Package harness makes hosts out of network, mount, UTS and PID namespaces of
// one machine, joins them to a network, and runs the real kedge on them. The
// network can be as bad as a test wants: Host has cuts, loss, delay and narrow
// links, BehindNAT hides hosts. Tests below tests/ call it; it needs root.
//
// A host's first process is the test binary itself, started again (see
// runInit), so a test package that uses hosts needs
//
//	func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }
//
// Nothing of a host outlives the test binary, however that ends: the kernel
// kills the first process with it, with that one all others, and the
// namespaces take mounts and interfaces along. Only a host's cgroups and its
// folder stay behind then, and the next run removes them.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// binaryVariable names kedge's executable. The Makefile sets it, and while it
// is set no test skips.
const binaryVariable = "KEDGE_BINARY"

// T is what the harness needs of a test. It is a *testing.T, or a Suite for
// what the tests of a package share.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Require skips a test that cannot run because it was not started by make.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(binaryVariable) == "" {
		t.Skipf("%s is not set: run this test as root by `make integration` or `make e2e`", binaryVariable)
	}
	if os.Geteuid() != 0 {
		t.Fatal("hosts are made of namespaces, which only root can make: run make as root")
	}
}

// RequireOlder is Require for tests that update kedge: it returns the executable of the
// older one.
func RequireOlder(t testing.TB) string {
	t.Helper()
	Require(t)
	older := os.Getenv("KEDGE_OLDER")
	if older == "" {
		t.Skip("KEDGE_OLDER is not set: run this test by `make e2e`")
	}
	return older
}

// Suite is all tests of one package. Its zero value is ready for use.
type Suite struct {
	mutex    sync.Mutex
	failed   bool
	cleanups []func()
}

// Main runs the tests and then the cleanups of what they share; it returns the
// exit status. In a host's first process it never returns.
func (s *Suite) Main(m *testing.M) int {
	if spec := os.Getenv(initVariable); spec != "" {
		runInit(spec)
	}
	code := m.Run()
	if code != 0 {
		s.setFailed()
	}
	for {
		s.mutex.Lock()
		cleanups := s.cleanups
		s.cleanups = nil
		s.mutex.Unlock()
		if len(cleanups) == 0 {
			break
		}
		for _, cleanup := range slices.Backward(cleanups) {
			cleanup()
		}
	}
	if code == 0 && s.Failed() {
		code = 1
	}
	return code
}

// Helper does nothing.
func (s *Suite) Helper() {}

// Logf prints.
func (s *Suite) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Fatalf prints, and ends the goroutine that called.
func (s *Suite) Fatalf(format string, args ...any) {
	s.setFailed()
	s.Logf(format, args...)
	runtime.Goexit()
}

// Failed reports whether a test failed.
func (s *Suite) Failed() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.failed
}

func (s *Suite) setFailed() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.failed = true
}

// Cleanup has f called after all tests.
func (s *Suite) Cleanup(f func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Eventually calls check until it returns nil, and fails the test with its last
// error after timeout. what completes "waiting for".
func Eventually(t T, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: after %s: %v", what, timeout, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// Need installs Debian packages.
func Need(t T, packages ...string) {
	t.Helper()
	repository, err := Repository()
	if err != nil {
		t.Fatalf("find scripts/need.sh: %v", err)
	}
	if output, err := exec.Command(filepath.Join(repository, "scripts/need.sh"), packages...).CombinedOutput(); err != nil {
		t.Fatalf("install %v: %v\n%s", packages, err, output)
	}
}

// Repository returns the folder of the source tree that the test runs in.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("find the source tree: no go.mod above the working directory")
}

// Document returns a document of the source tree, such as docs/observing.md, whose
// commands and tables tests compare with what is.
func Document(t T, name string) string {
	t.Helper()
	repository, err := Repository()
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatalf("read document: %v", err)
	}
	return string(text)
}
