package scheduler

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNew gives the scheduler arguments that change it, and arguments that it refuses.
func TestNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: true}
profiles: [{schedulerName: packer}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args    []string
		profile string
		port    int
		fault   string // words in the error, empty for success
	}{
		"by default":        {profile: "default-scheduler", port: 10259},
		"on another port":   {args: []string{"secure-port=12345"}, profile: "default-scheduler", port: 12345},
		"with a file":       {args: []string{"config=" + file}, profile: "packer", port: 10259},
		"with a wrong file": {args: []string{"config=" + file + ".missing"}, fault: "kube-scheduler-arg: load config: "},
		"with a kubeconfig": {args: []string{"kubeconfig=" + file}, fault: "it reaches the API server in process"},
		"electing":          {args: []string{"leader-elect=true"}, fault: "kedge decides itself which server's runs"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Address: netip.MustParseAddr("192.0.2.1"), CertFile: "cert", KeyFile: "key", Args: test.args})
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("New() error is %v, want in it %s", err, test.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			config, serving := s.options.ComponentConfig, s.options.SecureServing
			if config.LeaderElection.LeaderElect {
				t.Error("the scheduler elects a leader itself")
			}
			if len(config.Profiles) != 1 || config.Profiles[0].SchedulerName != test.profile {
				t.Errorf("the profiles are %v, want %s", config.Profiles, test.profile)
			}
			if serving.BindAddress.String() != "192.0.2.1" || serving.BindPort != test.port || serving.ServerCert.CertKey.CertFile != "cert" {
				t.Errorf("it serves at %s port %d with %s", serving.BindAddress, serving.BindPort, serving.ServerCert.CertKey.CertFile)
			}
		})
	}
}
