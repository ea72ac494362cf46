package pki

import (
	"crypto/tls"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestKubeconfigGolden(t *testing.T) {
	cert := &tls.Certificate{Certificate: [][]byte{[]byte("leaf"), []byte("intermediate")}}
	got, err := renderKubeconfig(KubeconfigFile{Name: "default", Server: "https://127.0.0.1:6443"}, []byte("the authority\n"), cert, []byte("the key\n"))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "kubeconfig.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWriteKubeconfigOnlyWhenItDiffers(t *testing.T) {
	s := ensure(t, options(t))
	path := filepath.Join(t.TempDir(), "kedge", "kedge.yaml")
	stat := func(mode os.FileMode) os.FileInfo {
		t.Helper()
		if err := s.WriteKubeconfig(KubeconfigFile{Path: path, Mode: mode, Server: "https://127.0.0.1:6443"}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != mode {
			t.Fatalf("mode %v, %v; want %v", info.Mode(), err, mode)
		}
		return info
	}
	first := stat(0o600)
	if !os.SameFile(first, stat(0o600)) {
		t.Error("an unchanged kubeconfig was written again")
	}
	stat(0o644)
	if err := os.WriteFile(path, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	if info := stat(0o644); info.Size() == 4 {
		t.Error("a broken one was left")
	}
}

// TestKubeconfigGroup gives the file to a group, and names its context.
func TestKubeconfigGroup(t *testing.T) {
	s := ensure(t, options(t))
	file := KubeconfigFile{Path: filepath.Join(t.TempDir(), "kedge.yaml"), Mode: 0o640, Group: "no-such-group", Name: "edge", Server: "https://127.0.0.1:6443"}
	if err := s.WriteKubeconfig(file); err == nil || !strings.Contains(err.Error(), "write-kubeconfig-group") {
		t.Errorf("an unknown group: got %v", err)
	}
	// Root may give a file to any group, and others to a group of their own.
	gid := os.Getgid()
	if os.Geteuid() == 0 {
		gid = 12345
	}
	file.Group = strconv.Itoa(gid)
	for range 2 {
		if err := s.WriteKubeconfig(file); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file.Path)
		if err != nil || info.Sys().(*syscall.Stat_t).Gid != uint32(gid) {
			t.Errorf("got %+v, %v, want the group %d", info, err, gid)
		}
	}
	if text, err := os.ReadFile(file.Path); err != nil || !strings.Contains(string(text), "current-context: edge") {
		t.Errorf("got %s, %v", text, err)
	}
}
