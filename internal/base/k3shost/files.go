package k3shost

import (
	"fmt"
	"path/filepath"
	"slices"
)

// File is a file in which a user of k3s sets the kubelet or containerd.
type File struct {
	Path string
	// Do is a sentence that says what to do with it.
	Do string
}

// places are where such files are, below k3s's data directory. k3s itself writes some of the
// kubelet's: its defaults, and copies of what kubelet-arg names.
var places = []struct {
	pattern string
	k3s     []string
	do      string
}{
	{"agent/etc/kubelet.conf.d/*.conf", []string{"00-k3s-defaults.conf", "10-cli-config.conf"}, "Copy it to /etc/kedge/kubelet.conf.d, and set kubelet-arg: config-dir=/etc/kedge/kubelet.conf.d."},
	{"agent/etc/containerd/config*.toml.d/*.toml", nil, "Copy it to /etc/kedge/containerd."},
	{"agent/etc/containerd/config*.toml.tmpl", nil, "Put what you have added to k3s's template into a file /etc/kedge/containerd/NAME.toml."},
}

// Files returns the files in which users set the kubelet and containerd of a k3s with this
// data directory. kedge reads such files elsewhere.
func Files(data string) ([]File, error) {
	var files []File
	for _, place := range places {
		found, err := filepath.Glob(filepath.Join(data, place.pattern))
		if err != nil {
			return nil, fmt.Errorf("find settings of k3s: %w", err)
		}
		for _, path := range found {
			if !slices.Contains(place.k3s, filepath.Base(path)) {
				files = append(files, File{path, place.do})
			}
		}
	}
	return files, nil
}
