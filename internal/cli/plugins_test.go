package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// rememberer is a kubectl.PluginHandler that only remembers the environment.
type rememberer struct{ env []string }

func (*rememberer) Lookup(string) (string, bool) { return "", false }
func (r *rememberer) Execute(_ string, _, env []string) error {
	r.env = env
	return nil
}

// TestPluginEnvironment gives plugins the link to kedge that is called kubectl, and no other kubectl.
func TestPluginEnvironment(t *testing.T) {
	this, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	given := []string{"HOME=/root", "KUBECTL_PATH=" + this}
	for _, target := range []string{this, "/bin/true", ""} {
		folder := t.TempDir()
		link := filepath.Join(folder, "kubectl")
		if target != "" {
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", folder)
		var r rememberer
		if err := (plugins{&r}).Execute("kubectl-own", nil, given); err != nil {
			t.Fatal(err)
		}
		expected := given[:1]
		if target == this {
			expected = []string{given[0], "KUBECTL_PATH=" + link}
		}
		if !slices.Equal(r.env, expected) {
			t.Errorf("a kubectl that leads to %q: got environment %v, want %v", target, r.env, expected)
		}
	}
}
