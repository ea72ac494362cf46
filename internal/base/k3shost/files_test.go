package k3shost

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Files of users are found, and k3s's own are not.
func TestFiles(t *testing.T) {
	data := t.TempDir()
	for _, file := range []string{
		"kubelet.conf.d/00-k3s-defaults.conf", "kubelet.conf.d/10-cli-config.conf", "kubelet.conf.d/50-mine.conf", "kubelet.conf.d/README",
		"containerd/config.toml", "containerd/config-v3.toml.tmpl", "containerd/config-v3.toml.d/gpu.toml",
	} {
		path := filepath.Join(data, "agent/etc", file)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files, err := Files(data)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file.Path))
	}
	if want := []string{"50-mine.conf", "gpu.toml", "config-v3.toml.tmpl"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}
