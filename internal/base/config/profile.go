package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// profileCIS is for the CIS Kubernetes Benchmark.
const profileCIS = "cis"

// admissionFile is upstream's argument for how pods and events are admitted.
const admissionFile = "admission-control-config-file"

// applyProfile sets what a profile stands for: what the hardening guide of k3s
// sets for this benchmark, where that is not so already. Arguments come before the
// user's own, whose word is the last. tests/e2e/cis says which check is which.
func (c *Config) applyProfile(sources Sources) {
	if c.Profile != profileCIS {
		return
	}
	const name = "profile " + profileCIS
	of := func(key string) {
		switch before := sources[key]; {
		case before == "":
			sources[key] = name
		case !strings.HasPrefix(before, name):
			sources[key] = name + ", " + before
		}
	}
	under := func(key string, args *[]string, profile ...string) {
		*args = slices.Concat(profile, *args)
		of(key)
	}
	c.Node.ProtectKernelDefaults = true
	of("protect-kernel-defaults")
	under("kube-apiserver-arg", &c.Server.KubeAPIServerArgs,
		"audit-log-path="+datadir.Dir(c.DataDir).AuditLog(),
		// A token in a pod ends after an hour, and not after a year for those who
		// do not read it again.
		"service-account-extend-token-expiration=false",
	)
	if c.Server.APIServerArg(admissionFile) == "" {
		if c.Server.PodSecurityStandard == "" {
			c.Server.PodSecurityStandard = "restricted"
			of("pod-security-standard")
		}
		under("kube-apiserver-arg", &c.Server.KubeAPIServerArgs, "enable-admission-plugins=EventRateLimit")
	}
	under("kube-controller-manager-arg", &c.Server.KubeControllerManagerArgs, "terminated-pod-gc-threshold=100", "bind-address=127.0.0.1")
	under("kube-scheduler-arg", &c.Server.KubeSchedulerArgs, "bind-address=127.0.0.1")
	under("kubelet-arg", &c.Node.KubeletArgs,
		"streaming-connection-idle-timeout=5m",
		"pod-max-pids=4096",
		"seccomp-default=true",
		"tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,"+
			"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,"+
			"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
	)
}

// VolumesFolder returns the folder of volumes whose class does not say another.
func (n *Node) VolumesFolder(dir datadir.Dir) string {
	return cmp.Or(n.DefaultLocalStoragePath, dir.Storage())
}
