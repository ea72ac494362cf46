package clusters

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParsePublished(t *testing.T) {
	for text, want := range map[string]string{
		"8080:80":             "127.0.0.1:8080:80",
		"0.0.0.0:8080:80":     "0.0.0.0:8080:80",
		"[::1]:8080:30080":    "[::1]:8080:30080",
		"":                    "",
		"8080":                "",
		"8080:":               "",
		":80":                 "",
		"0:80":                "",
		"8080:0":              "",
		"8080:65536":          "",
		"65536:80":            "",
		"localhost:8080:80":   "",
		"1.2.3.4:5:6:7":       "",
		"8080:80/udp":         "",
		"-1:80":               "",
		"127.0.0.1:8080:80\n": "",
	} {
		got, err := ParsePublished(text)
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "such as 8080:80")):
			t.Errorf("%q: got %v, %v, want an error that says what to write", text, got, err)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%q: got %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestParsePort(t *testing.T) {
	for text, want := range map[string]uint16{"5001": 5001, "1": 1, "65535": 65535, "0": 0, "65536": 0, "": 0, "-1": 0, "x": 0, "5001 ": 0} {
		got, err := ParsePort(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
}

func FuzzParsePublished(f *testing.F) {
	for _, text := range []string{"8080:80", "0.0.0.0:1:2", "[::1]:8080:80", ":", "a:b:c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParsePublished(text)
		if err != nil {
			return
		}
		if !got.Listen.IsValid() || got.Listen.Port() == 0 || got.Port == 0 {
			t.Errorf("%q became %v", text, got)
		}
		if again, err := ParsePublished(got.String()); err != nil || again != got {
			t.Errorf("%q became %v, and that %v, %v", text, got, again, err)
		}
	})
}

func TestCheckName(t *testing.T) {
	for name, valid := range map[string]bool{
		"a": true, "dev": true, "team-1": true, "0": true, strings.Repeat("a", 32): true,
		"": false, "-a": false, "a-": false, "A": false, "a/b": false, "..": false, "a.b": false, "a b": false, strings.Repeat("a", 33): false, "a\n": false,
	} {
		if err := CheckName(name); (err == nil) != valid {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestFreeSubnet(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	for name, test := range map[string]struct {
		taken    map[int]bool
		networks []netip.Prefix
		want     int
	}{
		"nothing":            {nil, nil, 0},
		"other clusters":     {map[int]bool{0: true, 1: true, 3: true}, nil, 2},
		"a route":            {nil, prefixes("198.18.0.0/24"), 1},
		"a larger route":     {nil, prefixes("198.18.0.0/16"), 256},
		"a single address":   {nil, prefixes("198.18.0.7/32"), 1},
		"a route elsewhere":  {nil, prefixes("10.0.0.0/8"), 0},
		"everything":         {nil, prefixes("198.0.0.0/8"), -1},
		"routes and cluster": {map[int]bool{1: true}, prefixes("198.18.0.0/24"), 2},
	} {
		got, err := freeSubnet(test.taken, test.networks)
		if test.want < 0 {
			if err == nil || !strings.Contains(err.Error(), "kedge cluster delete") {
				t.Errorf("%s: got %d, %v", name, got, err)
			}
		} else if err != nil || got != test.want {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, test.want)
		}
	}
	last := Cluster{Subnet: subnets - 1}
	if got := last.Addresses().Address(1).String(); got != "198.19.255.1" || !Range().Contains(last.Addresses().Address(254)) {
		t.Errorf("the last network has the address %s", got)
	}
}

func newStore(t *testing.T) Store {
	folder := t.TempDir()
	return Store{Run: filepath.Join(folder, "run"), Data: filepath.Join(folder, "data")}
}

// apiOnly is a cluster that needs no root.
func apiOnly(name string, temporary bool) Cluster {
	return Cluster{Name: name, Temporary: temporary, APIOnly: true}
}

func TestStoreKeepsRecords(t *testing.T) {
	store := newStore(t)
	held, err := store.Create(apiOnly("one", false))
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Write(Status{State: Ready, API: "https://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	known, err := store.Find("one")
	if err != nil || known.State != Ready || known.API == "" {
		t.Errorf("a cluster that runs is %+v, %v", known, err)
	}
	if _, err := store.Create(apiOnly("one", true)); err == nil || !strings.Contains(err.Error(), "kedge cluster delete one") {
		t.Errorf("a second cluster of the same name: %v", err)
	}
	// A lock of the same process would not be seen as taken if it were one of POSIX.
	if _, err := store.Hold("one"); !errors.Is(err, ErrRuns) {
		t.Errorf("hold a cluster that runs: %v", err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if known, err = store.Find("one"); err != nil || known.State != Stopped {
		t.Errorf("a stopped cluster is %+v, %v", known, err)
	}
	again, err := store.Hold("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Find("one"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a deleted cluster: %v", err)
	}
	for _, folder := range []string{store.Run, store.Data} {
		if _, err := os.Stat(folder); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", folder, err)
		}
	}
}

// TestKilledClustersAreCleared leaves the folder of a temporary cluster without a process that holds it.
func TestKilledClustersAreCleared(t *testing.T) {
	store := newStore(t)
	killed, err := store.Create(apiOnly("killed", true))
	if err != nil {
		t.Fatal(err)
	}
	killed.lock.Close()
	if list, err := store.List(); err != nil || len(list) != 0 {
		t.Errorf("a killed cluster is listed: %v, %v", list, err)
	}
	other, err := store.Create(apiOnly("", true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(store.RunFolder("killed")); !os.IsNotExist(err) {
		t.Errorf("the folder of the killed cluster is left: %v", err)
	}
	if err := CheckName(other.Name); err != nil || !strings.HasPrefix(other.Name, "run-") {
		t.Errorf("the chosen name is %q: %v", other.Name, err)
	}
	if err := other.Delete(); err != nil {
		t.Error(err)
	}
}

func TestPrivateFolder(t *testing.T) {
	folder := t.TempDir()
	own := filepath.Join(folder, "own")
	if err := privateFolder(own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := privateFolder(own); err != nil {
		t.Error(err)
	}
	open := filepath.Join(folder, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(folder, "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, link} {
		if err := privateFolder(path); err == nil || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestRemovalOrder wants the record of a cluster to go after the data, so that an interrupted deletion can be
// repeated.
func TestRemovalOrder(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"a", clusterFile, lockFile, statusFile, "z"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	if got := removalOrder(entries, []string{lockFile, statusFile, clusterFile}); !slices.Equal(got, []string{"a", "z", lockFile, statusFile, clusterFile}) {
		t.Errorf("got %q", got)
	}
	if err := removeLast(folder, clusterFile); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the folder is left: %v", err)
	}
}

// TestDeleteTemporary wants the end of a temporary cluster to remove nothing outside the folder of clusters
// that run.
func TestDeleteTemporary(t *testing.T) {
	t.Chdir(t.TempDir())
	store := Store{Run: filepath.Join(t.TempDir(), "run")} // as of users other than root
	if err := os.Mkdir("one", 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := store.Create(apiOnly("one", true))
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("one"); err != nil {
		t.Errorf("a folder of the same name in the working folder: %v", err)
	}
}

// TestFolderOfOthers has a folder for clusters that another user can change.
func TestFolderOfOthers(t *testing.T) {
	store := newStore(t)
	if err := os.Mkdir(store.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(store.Run, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(apiOnly("one", true)); err == nil || !strings.Contains(err.Error(), "not a folder for this user only") {
		t.Errorf("got %v", err)
	}
}
