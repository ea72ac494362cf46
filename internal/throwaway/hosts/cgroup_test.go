package hosts

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMakeCgroup makes cgroups in folders that look like hierarchies of both versions.
func TestMakeCgroup(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(v1, "cpuset.cpus"): "0-1", filepath.Join(v1, "cpuset.mems"): "0",
		filepath.Join(v2, "cgroup.controllers"): "cpu memory", filepath.Join(v2, "cgroup.subtree_control"): "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel makes this file, and no folder of a test does: one level is all there is.
	for range 2 {
		if err := makeCgroup([]string{v1}, []string{v2}, "one"); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeCgroup([]string{v1}, nil, "one/two"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		filepath.Join(v1, "one/cpuset.cpus"):     "0-1",
		filepath.Join(v1, "one/two/cpuset.cpus"): "0-1",
		filepath.Join(v1, "one/two/cpuset.mems"): "0",
		// The kernel reads single words: the last one is in the file.
		filepath.Join(v2, "cgroup.subtree_control"): "+memory",
	} {
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("%s has %q, %v, want %q", file, text, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(v2, "one")); err != nil || !info.IsDir() {
		t.Errorf("no cgroup of version 2: %v", err)
	}
}
