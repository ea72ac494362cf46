package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

func TestSecretValues(t *testing.T) {
	for line, want := range map[string][]string{
		"kedge agent --server https://a:6443 --token T":                {"T"},
		"kedge agent --token=T --node-label a=b":                       {"T"},
		"kedge agent -token T":                                         {"T"},
		"kedge agent -t T --etcd-s3-secret-key=S --vpn-auth V":         {"T", "S", "V"},
		"kedge server --agent-token A --token=T":                       {"A", "T"},
		"kedge server --datastore-endpoint=postgres://u:p@h/d?a=b":     {"postgres://u:p@h/d?a=b"},
		"kedge snapshot save --s3-access-key K --s3-secret-key=S --s3": {"K", "S"},
		"kedge agent --token-file /root/token --token":                 nil,
		"kedge kubectl get secret token":                               nil,
	} {
		if got := secretValues(strings.Fields(line)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

// TestHideSecrets asks a process of its own what its command line is, and what it
// takes it for itself.
func TestHideSecrets(t *testing.T) {
	if os.Getenv("KEDGE_TEST_ARGV") != "" {
		HideSecrets()
		line, err := os.ReadFile("/proc/self/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("shown " + strings.ReplaceAll(string(line), "\x00", " ") + "\nkept " + strings.Join(os.Args, " ") + "\n")
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHideSecrets$", "--", "--token=one", "--s3-secret-key", "three", "--data-dir=/d")
	cmd.Env = append(os.Environ(), "KEDGE_TEST_ARGV=1")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run the test as a program with secrets in its arguments: %v\n%s", err, output)
	}
	for _, want := range []string{
		"-- --token=*** --s3-secret-key ***** --data-dir=/d \nkept",
		"-- --token=one --s3-secret-key three --data-dir=/d\n",
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("want %q in\n%s", want, output)
		}
	}
}

// TestInstallerKnowsSecrets wants install.sh to know every flag whose value must not
// be in a unit.
func TestInstallerKnowsSecrets(t *testing.T) {
	script, err := os.ReadFile("../../install.sh")
	if err != nil {
		t.Fatal(err)
	}
	if want := "secret_flags='" + strings.Join(config.SecretFlags(), " ") + "'\n"; !strings.Contains(string(script), want) {
		t.Errorf("install.sh lacks the line %s", want)
	}
}

// TestLostTokenFile has the file of an agent's token there, and not.
func TestLostTokenFile(t *testing.T) {
	there := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(there, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{"": "", there: there, there + ".gone": ""} {
		cfg := config.Default()
		cfg.TokenFile = given
		if err := withoutLostTokenFile(cfg); err != nil || cfg.TokenFile != want {
			t.Errorf("%q becomes %q, %v; want %q", given, cfg.TokenFile, err, want)
		}
	}
}
