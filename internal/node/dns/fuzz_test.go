package dns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

// FuzzCorefile plays a user who may write the ConfigMap coredns-custom. Whatever a part is, neither
// kedge nor CoreDNS's plugins may open a file outside the folder, tell what is in a file, or listen
// on anything other than the node's address. In a part FOLDER and OUTSIDE stand for folders. OUTSIDE
// is also the current folder.
func FuzzCorefile(f *testing.F) {
	const secret = "K10secret"
	folder, outside := f.TempDir(), f.TempDir()
	for _, file := range []string{filepath.Join(folder, "zone"), filepath.Join(outside, "s")} {
		if err := os.WriteFile(file, []byte(secret+" "+secret+"\n"), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(outside, "s"), filepath.Join(folder, "link")); err != nil {
		f.Fatal(err)
	}
	f.Setenv("SECRET", secret)
	opened, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		f.Fatal(err)
	}
	defer unix.Close(opened)
	if _, err := unix.InotifyAddWatch(opened, outside, unix.IN_OPEN|unix.IN_ACCESS); err != nil {
		f.Fatal(err)
	}
	plugins, err := registered()
	if err != nil {
		f.Fatal(err)
	}
	c := exampleCorefile()
	c.folder, c.source = folder, "fuzzed"
	plugins.sources.Store(c.source, &source{client: &rest.Config{Host: "http://127.0.0.1:1"}, shared: &clusterRecords{}})
	defer plugins.sources.Delete(c.source)

	f.Fuzz(func(t *testing.T, part string) {
		t.Chdir(outside) // not earlier, because the corpus is beside the test
		part = strings.NewReplacer("FOLDER", folder, "OUTSIDE", outside).Replace(part)
		for _, key := range []string{"part.override", "part.server"} {
			text, err := c.render(map[string]string{key: part})
			if err == nil {
				checkListens(t, c, text)
				// The instance is not started, because it would listen.
				if err = caddy.ValidateAndExecuteDirectives(input(text), nil, true); err != nil {
					err = c.told(text, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error contains the content of a file: %v", key, err)
			}
			if n, _ := unix.Read(opened, make([]byte, 4096)); n > 0 {
				t.Errorf("%s: a file outside the folder is opened", key)
			}
		}
	})
}

// checkListens fails the test unless each server block listens only on the node's address at kedge's
// port.
func checkListens(t *testing.T, c corefile, text string) {
	t.Helper()
	blocks, err := caddyfile.Parse(nowhere+"/Corefile", strings.NewReader(text), directives)
	if err != nil {
		t.Errorf("CoreDNS cannot parse the Corefile that kedge wrote: %v\n%s", err, text)
	}
	for _, block := range blocks {
		for _, key := range block.Keys {
			if !strings.HasSuffix(key, ":10053") || strings.Contains(key, "://") {
				t.Errorf("a server block of %q", key)
			}
		}
		bound := block.Tokens["bind"]
		if len(bound) != 2 || bound[1].Text != c.addresses[0].String() {
			t.Errorf("%v listens on %v", block.Keys, bound)
		}
	}
}
