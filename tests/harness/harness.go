// Package harness makes hosts from network, mount, UTS and PID namespaces of one machine, connects them
// to a network, and runs the real kedge on them. Tests can make the network bad: Host has methods
// to cut links, lose and delay packets and limit bandwidth, and BehindNAT hides hosts. Tests below
// tests/ call this package. It needs root.
//
// A test package that uses hosts needs a Suite. When the tests have ended, the Suite removes what they have left:
//
//	func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }
//
// Nothing of a host outlives the test binary, however that ends. The kernel kills the host's first
// process together with the test binary, and all other processes of the host with the first. Mounts
// and interfaces disappear with the namespaces. Only a host's cgroups and folder stay, and the next
// run removes them.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// binaryVariable names kedge's executable. The Makefile sets it. If it is set, no test is skipped.
const binaryVariable = "KEDGE_BINARY"

// T is the part of a test that the harness needs. It is a *testing.T, or a Suite for what the tests
// of a package share.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Require skips a test that was not started by make and so cannot run.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(binaryVariable) == "" {
		t.Skipf("%s is not set: run this test as root by `make integration` or `make e2e`", binaryVariable)
	}
	if os.Geteuid() != 0 {
		t.Fatal("hosts are made of namespaces, which only root can make: run make as root")
	}
}

// RequireOlder is Require for tests that update kedge. It returns the path of the last release's
// executable.
func RequireOlder(t testing.TB) string {
	t.Helper()
	return requireOther(t, "KEDGE_OLDER")
}

// RequireOldest is Require for tests that update a kedge from before nodes had registrations. It returns
// the path of that executable.
func RequireOldest(t testing.TB) string {
	t.Helper()
	return requireOther(t, "KEDGE_OLDEST")
}

// RequireNext is Require for tests in which kedge upgrades itself. It returns the path of an executable
// that differs from the tested one only in its version, which is later.
func RequireNext(t testing.TB) string {
	t.Helper()
	return requireOther(t, "KEDGE_NEXT")
}

// requireOther returns the value of a variable that names another executable of kedge.
func requireOther(t testing.TB, variable string) string {
	t.Helper()
	Require(t)
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("%s is not set: run this test by `make e2e`", variable)
	}
	return path
}

// Suite represents all tests of a package. Its zero value is ready for use.
type Suite struct {
	mutex    sync.Mutex
	failed   bool
	cleanups []func()
}

// Main runs the tests and then the cleanups of the suite. It returns the exit status.
func (s *Suite) Main(m *testing.M) int {
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

// Fatalf prints and ends the calling goroutine.
func (s *Suite) Fatalf(format string, args ...any) {
	s.setFailed()
	s.Logf(format, args...)
	runtime.Goexit()
}

// Failed tells whether a test has failed.
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

// Cleanup makes f run after all tests.
func (s *Suite) Cleanup(f func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// slowVariable has how many times as long as usual this machine may take, for example because it is emulated.
const slowVariable = "KEDGE_SLOW"

// Slowly returns how long something may take on this machine that takes at most d elsewhere.
func Slowly(d time.Duration) time.Duration {
	times, err := strconv.Atoi(os.Getenv(slowVariable))
	if err != nil {
		return d
	}
	return d * time.Duration(max(times, 1))
}

// Eventually calls check until it returns nil. After timeout it fails the test with check's last error.
// what completes "waiting for". On a slow machine, the timeout is longer: see Slowly.
func Eventually(t T, timeout time.Duration, what string, check func() error) {
	t.Helper()
	timeout = Slowly(timeout)
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
