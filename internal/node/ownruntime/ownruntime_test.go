package ownruntime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cri-client/pkg/fake"
)

// TestWaitForRuntime starts to wait before there is a runtime, as at boot.
func TestWaitForRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := askRuntime(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("ask a runtime without a socket: got error %v, want that there is no such file", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- waitForRuntime(t.Context(), socket) }()
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start("unix://" + socket); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("wait for a runtime that answers: %v", err)
	}
	runtime.Stop()

	ctx, cancel := context.WithCancel(t.Context())
	go func() { waited <- waitForRuntime(ctx, socket) }()
	cancel()
	if err := <-waited; err == nil {
		t.Error("a cancelled wait returned no error")
	}
}

func TestLinkPlugins(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "bin")
	own := filepath.Join(folder, "bridge")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("the user's"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := link(folder); err != nil {
			t.Fatal(err)
		}
	}
	if target, err := os.Readlink(filepath.Join(folder, "portmap")); err != nil || target != "/run/kedge/bin/portmap" {
		t.Errorf("portmap leads to %q, %v", target, err)
	}
	for range 2 {
		if err := Unlink(folder); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 || left[0].Name() != "bridge" {
		t.Errorf("left are %v, %v, want only the user's bridge", left, err)
	}
	if text, err := os.ReadFile(own); err != nil || string(text) != "the user's" {
		t.Errorf("the user's plugin is now %q, %v", text, err)
	}
}
