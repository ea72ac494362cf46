package rootless

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	ids "github.com/moby/sys/user"
)

func TestArguments(t *testing.T) {
	for name, test := range map[string]struct {
		ranges []ids.SubID
		want   string
		count  int64
	}{
		"none":       {nil, "0 1000 1", 0},
		"one range":  {[]ids.SubID{{SubID: 100000, Count: 65536}}, "0 1000 1 1 100000 65536", 65536},
		"two ranges": {[]ids.SubID{{SubID: 100000, Count: 1000}, {SubID: 500000, Count: 65536}}, "0 1000 1 1 100000 1000 1001 500000 65536", 66536},
	} {
		got, count := arguments(1000, test.ranges)
		if strings.Join(got, " ") != test.want || count != test.count {
			t.Errorf("%s: %q with %d IDs, want %q with %d", name, got, count, test.want, test.count)
		}
	}
}

func TestUnified(t *testing.T) {
	for text, want := range map[string]string{
		"0::/user.slice/user-1000.slice/session-3.scope\n": "/user.slice/user-1000.slice/session-3.scope",
		"0::/\n": "/",
		"12:memory:/user.slice\n0::/user.slice/session-3.scope\n": "", // hybrid
		"3:cpu:/\n2:memory:/\n":                                   "",
		"0::/a\n1:name=x:/b\n":                                    "",
	} {
		if got, ok := unified(text); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %t", text, got, ok)
		}
	}
}

func TestRuntimeFolder(t *testing.T) {
	if got := runtimeFolder("", 1000); got != "/run/user/1000" {
		t.Error(got)
	}
	if got := runtimeFolder("/tmp/mine", 1000); got != "/tmp/mine" {
		t.Error(got)
	}
}

func TestCheckModule(t *testing.T) {
	root := t.TempDir()
	if err := checkModule(root); err == nil || !strings.Contains(err.Error(), "sudo modprobe br_netfilter") {
		t.Errorf("got %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "proc/sys/net/bridge"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkModule(root); err != nil {
		t.Error(err)
	}
}
