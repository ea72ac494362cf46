package network

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRemoveConfiguration(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		left  bool
	}{
		"kedge's":            {[]string{conflistName}, false},
		"kedge's and others": {[]string{conflistName, "10-other.conflist"}, true},
		"an empty folder":    {nil, true},
	} {
		dir := filepath.Join(t.TempDir(), "cni", "net.d")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range test.files {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := removeConfiguration(dir); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(filepath.Dir(dir)); (err == nil) != test.left {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, conflistName)); err == nil {
			t.Errorf("%s: the configuration is left", name)
		}
	}
}

func TestRemoveResults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni")
	results := filepath.Join(dir, "results")
	if err := os.MkdirAll(results, 0o755); err != nil {
		t.Fatal(err)
	}
	others := []string{"cni-loopback-0002-lo", "podman-0002-eth0"}
	for _, name := range append(others, "kedge-0001-eth0", "cni-loopback-0001-lo") {
		if err := os.WriteFile(filepath.Join(results, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeResults(dir); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if !slices.Equal(left, others) {
		t.Errorf("%v are left, want %v", left, others)
	}
	for _, name := range others {
		if err := os.Remove(filepath.Join(results, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeResults(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the empty folder is there: %v", err)
	}
}
