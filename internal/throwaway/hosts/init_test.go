package hosts

import (
	"os"
	"strings"
	"testing"
)

// TestFirstProcessGetsNoSecrets wants the programs of a host to see no variable of the machine.
func TestFirstProcessGetsNoSecrets(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hush")
	cmd, err := Setup{Hostname: "one"}.firstProcess(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if len(cmd.Env) != 1 || !strings.HasPrefix(cmd.Env[0], initVariable+"=") {
		t.Errorf("the first process gets %q", cmd.Env)
	}
}
