package pki

import (
	"crypto/tls"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestKubeconfigGolden(t *testing.T) {
	cert := &tls.Certificate{Certificate: [][]byte{[]byte("leaf"), []byte("intermediate")}}
	got, err := renderKubeconfig("https://127.0.0.1:6443", []byte("the authority\n"), cert, []byte("the key\n"))
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
		if err := s.WriteKubeconfig(path, mode, "https://127.0.0.1:6443"); err != nil {
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
