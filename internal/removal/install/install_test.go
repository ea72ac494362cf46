package install

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// host makes a root with files, given as texts by path, and with programs that note how
// they were called and exit with a status.
func host(t *testing.T, files map[string]string, status string) (root string, calls func() string) {
	t.Helper()
	root = t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin, notes := t.TempDir(), filepath.Join(t.TempDir(), "notes")
	for _, name := range []string{"systemctl", "rc-service", "rc-update"} {
		program := "#!/bin/sh\necho " + name + " \"$@\" >>" + notes + "\necho no such service\nexit " + status + "\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	return root, func() string {
		text, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestSystemd(t *testing.T) {
	root, calls := host(t, map[string]string{
		manifestFile:                              "/opt/bin/kedge\n/opt/bin/.kedge-install\n/opt/bin/ctr\n/etc/systemd/system/kedge.service\n",
		commandFile:                               "server --data-dir /mnt/kedge\n",
		EnvironmentFile:                           "KEDGE_NODE_NAME='one'\nKEDGE_TOKEN='a=b c'\n",
		"/opt/bin/kedge":                          "program",
		"/opt/bin/.kedge-install/old/kedge":       "of an upgrade that a power cut ended",
		"/opt/bin/ctr":                            "link",
		"/opt/bin/other":                          "not kedge's",
		"/etc/systemd/system/kedge.service":       "unit",
		"/etc/systemd/system/kedge.service.d/own": "the user's",
	}, "0")
	h, err := Look(root)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"--data-dir", "/mnt/kedge"}; !slices.Equal(h.Flags, want) {
		t.Errorf("flags %q, want %q", h.Flags, want)
	}
	if want := []string{"KEDGE_NODE_NAME=one", "KEDGE_TOKEN=a=b c"}; !slices.Equal(h.Environment, want) {
		t.Errorf("environment %q, want %q", h.Environment, want)
	}
	if err := h.StopService(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if want := "systemctl stop kedge\nsystemctl --quiet disable kedge\nsystemctl daemon-reload\n"; calls() != want {
		t.Errorf("calls were\n%s\nwant\n%s", calls(), want)
	}
	left, err := filepath.Glob(root + "/opt/bin/*")
	if err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, err := os.Stat(root + "/etc/systemd/system/kedge.service.d/own"); err != nil {
		t.Error(err)
	}
}

func TestOpenRC(t *testing.T) {
	root, calls := host(t, map[string]string{manifestFile: "/usr/local/bin/kedge\n/etc/init.d/kedge\n"}, "1")
	h, err := Look(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.StopService(t.Context()); err == nil || !strings.Contains(err.Error(), "rc-service --quiet kedge stop: exit status 1: no such service") {
		t.Errorf("got %v", err)
	}
	if calls() != "rc-service --quiet kedge stop\n" {
		t.Errorf("calls were %s", calls())
	}
}

// TestNone looks at hosts without install.sh, and without the service manager that was
// there when it ran.
func TestNone(t *testing.T) {
	root, calls := host(t, nil, "1")
	h, err := Look(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.StopService(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Remove(t.Context()); err != nil || calls() != "" {
		t.Errorf("%v, calls were %s", err, calls())
	}
	root, _ = host(t, map[string]string{manifestFile: "/etc/init.d/kedge\n", "/etc/init.d/kedge": "script"}, "1")
	t.Setenv("PATH", t.TempDir())
	if h, err = Look(root); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestForget(t *testing.T) {
	const before = "KEDGE_NODE_NAME='one'\nKEDGE_TOKEN='secret'\nKEDGE_URL='https://a:6443'\n"
	for name, test := range map[string]struct {
		files   map[string]string
		removed bool
		want    string
	}{
		"the token":         {map[string]string{EnvironmentFile: before}, true, "KEDGE_NODE_NAME='one'\nKEDGE_URL='https://a:6443'\n"},
		"the only line":     {map[string]string{EnvironmentFile: "KEDGE_TOKEN='secret'\n"}, true, ""},
		"another token":     {map[string]string{EnvironmentFile: "KEDGE_TOKEN='other'\n"}, false, "KEDGE_TOKEN='other'\n"},
		"not by install.sh": {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, _ := host(t, test.files, "0")
			removed, err := Forget(root, "KEDGE_TOKEN", "secret")
			if err != nil || removed != test.removed {
				t.Errorf("removed %t, %v", removed, err)
			}
			text, err := os.ReadFile(filepath.Join(root, EnvironmentFile))
			if string(text) != test.want || err != nil && !os.IsNotExist(err) {
				t.Errorf("the file is %q, %v", text, err)
			}
			if info, err := os.Stat(filepath.Join(root, EnvironmentFile)); err == nil && info.Mode() != 0o600 {
				t.Errorf("its mode is %s", info.Mode())
			}
		})
	}
}
