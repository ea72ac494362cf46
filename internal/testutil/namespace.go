package testutil

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// insideNamespace marks the process that RunInOwnNetwork starts.
const insideNamespace = "KEDGE_TEST_NAMESPACE"

// RunInOwnNetwork is for TestMain: it runs the tests of the package in a
// process with network and mount namespaces of its own, so that they can
// change what they like and leave nothing. It does not return. Without root
// the tests run as they are, and those that need the namespaces must skip.
func RunInOwnNetwork(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(insideNamespace) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), insideNamespace+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:    syscall.SIGKILL,
	}
	// A fuzzer ends in order if it is interrupted.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	if err := again.Start(); err != nil {
		os.Exit(1)
	}
	go func() {
		for interrupt := range interrupts {
			_ = again.Process.Signal(interrupt)
		}
	}()
	if err := again.Wait(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Command runs a command, its words separated by blanks, and returns its output.
func Command(t testing.TB, command string) string {
	t.Helper()
	words := strings.Fields(command)
	output, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return string(output)
}
