package teardown

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeSystemctl replaces systemctl by a script that notes how it is called. active are the units that
// it knows, and stopping tells whether it obeys.
func fakeSystemctl(t *testing.T, active string, obeys bool) (calls func() string) {
	t.Helper()
	folder, notes := t.TempDir(), filepath.Join(t.TempDir(), "notes")
	status := "0"
	if !obeys {
		status = "1"
	}
	script := "#!/bin/sh\necho \"$*\" >>" + notes + "\ncase $* in\n*is-active*) for unit in " + active +
		"; do case $* in *\" $unit\") exit 0 ;; esac; done; exit 3 ;;\nesac\necho it refuses\nexit " + status + "\n"
	if err := os.WriteFile(filepath.Join(folder, "systemctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder)
	return func() string {
		text, err := os.ReadFile(notes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestStopSlice(t *testing.T) {
	const question = "--quiet is-active kubepods.slice\n"
	for name, test := range map[string]struct {
		active      string
		obeys       bool
		calls, fail string
	}{
		"pods have run":       {active: "kubepods.slice", obeys: true, calls: question + "stop kubepods.slice\n"},
		"no pod has run":      {active: "other.slice", obeys: true, calls: question},
		"systemd cannot stop": {active: "kubepods.slice", calls: question + "stop kubepods.slice\n", fail: "systemctl stop kubepods.slice: exit status 1: it refuses"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := fakeSystemctl(t, test.active, test.obeys)
			err := stopSlice(t.Context(), podSlice)
			if (err == nil) != (test.fail == "") || err != nil && !strings.Contains(err.Error(), test.fail) {
				t.Errorf("got %v, want %q", err, test.fail)
			}
			if calls() != test.calls {
				t.Errorf("the calls were\n%s\nwant\n%s", calls(), test.calls)
			}
		})
	}
	t.Setenv("PATH", t.TempDir())
	if err := stopSlice(t.Context(), podSlice); err != nil {
		t.Errorf("a host without systemd: %v", err)
	}
}

func TestRemoveLogind(t *testing.T) {
	const question = "--quiet is-active systemd-logind.service\n"
	for name, test := range map[string]struct {
		files         []string
		active, calls string
		left          string
	}{
		"the kubelet's alone":    {files: []string{"99-kubelet.conf"}, active: "systemd-logind.service", calls: question + "kill --signal=SIGHUP systemd-logind.service\n"},
		"the user's beside it":   {files: []string{"99-kubelet.conf", "own.conf"}, active: "systemd-logind.service", calls: question + "kill --signal=SIGHUP systemd-logind.service\n", left: "own.conf"},
		"logind does not run":    {files: []string{"99-kubelet.conf"}, active: "other", calls: question},
		"the user's alone":       {files: []string{"own.conf"}, active: "systemd-logind.service", left: "own.conf"},
		"the kubelet wrote none": {active: "systemd-logind.service"},
	} {
		t.Run(name, func(t *testing.T) {
			calls, root := fakeSystemctl(t, test.active, true), t.TempDir()
			folder := filepath.Join(root, filepath.Dir(logindFile))
			for _, file := range test.files {
				if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, file), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if err := RemoveLogind(t.Context(), root); err != nil {
				t.Error(err)
			}
			if calls() != test.calls {
				t.Errorf("the calls were\n%s\nwant\n%s", calls(), test.calls)
			}
			entries, err := os.ReadDir(folder)
			switch {
			case test.left == "" && !errors.Is(err, fs.ErrNotExist):
				t.Errorf("the folder is left, with %v", entries)
			case test.left != "" && (len(entries) != 1 || entries[0].Name() != test.left):
				t.Errorf("%v are left, want %s", entries, test.left)
			}
		})
	}
}
