package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A profile is under what the user sets: the user's arguments come last.
func TestProfile(t *testing.T) {
	load := func(text string) (*Config, error) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path)
	}
	must := func(text string) *Config {
		t.Helper()
		c, err := load(text)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := must(""); c.Node.ProtectKernelDefaults || c.Server.PodSecurityStandard != "" || len(c.Server.KubeAPIServerArgs)+len(c.Node.KubeletArgs) > 0 {
		t.Errorf("without a profile: got %+v, want no hardening", c)
	}
	c := must("profile: cis\nkubelet-arg: [pod-max-pids=100]\nkube-apiserver-arg: [audit-log-path=/var/log/audit.log]")
	if !c.Node.ProtectKernelDefaults || c.Server.PodSecurityStandard != "restricted" || !c.Server.SecretsEncryption {
		t.Errorf("got %+v", c)
	}
	if got := c.Server.APIServerArg("audit-log-path"); got != "/var/log/audit.log" {
		t.Errorf("the audit log is %s", got)
	}
	if got := slices.Index(c.Node.KubeletArgs, "pod-max-pids=100"); got != len(c.Node.KubeletArgs)-1 || got < 3 {
		t.Errorf("the kubelet's arguments are %v", c.Node.KubeletArgs)
	}
	if c := must("profile: cis\npod-security-standard: baseline"); c.Server.PodSecurityStandard != "baseline" {
		t.Errorf("the standard is %s", c.Server.PodSecurityStandard)
	}
	c = must("profile: cis\nkube-apiserver-arg: [admission-control-config-file=/etc/kedge/admission.yaml]")
	if c.Server.PodSecurityStandard != "" || c.Server.APIServerArg("enable-admission-plugins") != "" {
		t.Errorf("beside the user's own admission: %+v", c.Server)
	}
	for text, want := range map[string]string{
		"profile: stig":                    "profile:",
		"pod-security-standard: everybody": "pod-security-standard:",
		"pod-security-standard: baseline\nkube-apiserver-arg: [admission-control-config-file=/a]": "Remove one of them",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("load %q: got error %v, want one with %q", text, err, want)
		}
	}
}
