package manifests

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func TestScan(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{
		"a.yaml", "b.yml", "deep/er/c.json", // applied
		"notes.txt", ".a.yaml.swp", ".hidden.yaml", "web.yaml~", // not manifests
		"off.yaml", "deep/off.yml", "part/d.yaml", // disabled
		"kept.yaml", "kept.yaml.skip", "held/e.yaml", "held.skip", "away.yaml.skip", // skipped
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"linked.yaml": "notes.txt", "of-nothing.yaml": "nothing", "of-device.yaml": "/dev/zero", "of-folder.yaml": "deep", "loop.yaml": "loop.yaml",
		"of-folder": "deep", "deep/up": "..", ".of-folder": "deep", "of-notes": "notes.txt", "part/of-folder": "../deep", "held/of-folder": "../deep", "linked.skip": "deep",
	} {
		if err := os.Symlink(target, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(folder, "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := scan(folder, []string{"off", "part", "nothing"})
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(found.contents)); !slices.Equal(names, []string{"a.yaml", "b.yml", "deep/er/c.json", "linked.yaml"}) {
		t.Errorf("got manifests %v, want a.yaml, b.yml, deep/er/c.json and linked.yaml", names)
	}
	if names := slices.Sorted(maps.Keys(found.faults)); !slices.Equal(names, []string{"deep/up", "fifo.yaml", "loop.yaml", "of-device.yaml", "of-folder", "of-folder.yaml"}) {
		t.Errorf("faults are %v", found.faults)
	}
	for _, name := range []string{"of-folder", "of-folder.yaml", "deep/up"} {
		if !errors.Is(found.faults[name], errLink) {
			t.Errorf("%s: got %v, want %v", name, found.faults[name], errLink)
		}
	}
	if names := slices.Compact(slices.Sorted(slices.Values(found.disabled))); !slices.Equal(names, []string{"off", "part"}) {
		t.Errorf("disabled are %v", names)
	}
	for name, want := range map[string]bool{"kept.yaml": true, "held/e.yaml": true, "held/more/f.yaml": true, "away.yaml": true, "a.yaml": false, "deep/kept.yaml": false} {
		if found.isSkipped(name) != want {
			t.Errorf("%s is skipped: %v", name, !want)
		}
	}
	for _, name := range []string{"none", "a.yaml"} {
		if _, err := scan(filepath.Join(folder, name), nil); err == nil {
			t.Errorf("%s is as an empty folder: all would be removed", name)
		}
	}
}

// TestNames wants names that the API accepts, and a distinct one for each file.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"web.yaml", "Web.yaml", "a/web.yaml", "a.web.yaml", "ünï.yaml"} {
		set := setName(name)
		if other, twice := seen[set]; twice {
			t.Errorf("%s and %s are both %s", name, other, set)
		}
		seen[set] = name
	}
	if setName("web.yaml") != "manifest-web.yaml" {
		t.Errorf("web.yaml is %s", setName("web.yaml"))
	}
}
