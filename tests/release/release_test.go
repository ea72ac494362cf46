// Package release looks at what `make release` has made, and runs each
// executable in it, those for other processors under Debian's qemu-user.
package release

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// releaseVariable names the release's folder.
const releaseVariable = "KEDGE_RELEASE"

// architectures has what runs each on another machine.
var architectures = map[string]struct{ goarch, emulator string }{
	"amd64": {"amd64", "qemu-x86_64-static"},
	"arm64": {"arm64", "qemu-aarch64-static"},
	"armv7": {"arm", "qemu-arm-static"},
}

func folder(t *testing.T) string {
	t.Helper()
	path := os.Getenv(releaseVariable)
	if path == "" {
		t.Skipf("%s is not set: run this test by `make release`", releaseVariable)
	}
	return path
}

// output runs a command in the release's folder.
func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = folder(t)
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, text)
	}
	return text
}

func TestSums(t *testing.T) {
	output(t, "sha256sum", "--check", "--ignore-missing", "--strict", "SHA256SUMS")
	sums := string(output(t, "cat", "SHA256SUMS"))
	for name := range architectures {
		for _, file := range []string{"kedge-" + name, "kedge-" + name + ".xz", "kedge-" + name + ".gz", "kedge-" + name + ".cdx.json"} {
			if !strings.Contains(sums, "  "+file+"\n") {
				t.Errorf("SHA256SUMS does not name %s", file)
			}
		}
	}
}

// TestExecutables unpacks each, and asks it for its version and about the host.
func TestExecutables(t *testing.T) {
	for name, architecture := range architectures {
		t.Run(name, func(t *testing.T) {
			xz, gz := output(t, "xz", "-dc", "kedge-"+name+".xz"), output(t, "gzip", "-dc", "kedge-"+name+".gz")
			if !bytes.Equal(xz, gz) {
				t.Error("xz and gzip have not the same in them")
			}
			program := filepath.Join(t.TempDir(), "kedge")
			if err := os.WriteFile(program, xz, 0o755); err != nil {
				t.Fatal(err)
			}
			kedge := func(args ...string) (string, error) {
				command := append([]string{program}, args...)
				if architecture.goarch != runtime.GOARCH {
					command = append([]string{architecture.emulator}, command...)
				}
				text, err := exec.Command(command[0], command[1:]...).CombinedOutput()
				return string(text), err
			}
			if text, err := kedge("version"); err != nil || !strings.Contains(text, "v1.") {
				t.Errorf("version: %v\n%s", err, text)
			}
			// Its status is about this machine.
			if text, err := kedge("check-config", "--data-dir="+t.TempDir()); !strings.Contains(text, "RESULT") {
				t.Errorf("check-config: %v\n%s", err, text)
			}
		})
	}
}

func TestSBOM(t *testing.T) {
	for name := range architectures {
		var bom struct {
			BOMFormat  string
			Components []struct{ Name, Version, PURL string }
		}
		if err := json.Unmarshal(output(t, "cat", "kedge-"+name+".cdx.json"), &bom); err != nil {
			t.Fatal(err)
		}
		versions := map[string]string{}
		for _, c := range bom.Components {
			versions[c.Name] = c.Version
			if c.Version == "" || !strings.HasPrefix(c.PURL, "pkg:") {
				t.Errorf("%s has a component without version: %+v", name, c)
			}
		}
		for _, part := range []string{"k8s.io/kubernetes", "github.com/opencontainers/runc", "stdlib", "nftables", "libc6"} {
			if versions[part] == "" {
				t.Errorf("%s does not have %s in it", name, part)
			}
		}
	}
}
