package apiserver

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// How much of an audit log is kept by default: what the CIS benchmark asks for.
const (
	auditDays      = 30
	auditFiles     = 10
	auditMegabytes = 100
)

// auditPolicy is used if the user sets an audit log without a policy, which would log
// nothing. It logs who has changed and read what. It leaves out the cluster's own reads
// and signs of life: with them, the log of a cluster at rest grows by gigabytes a month.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
# Who has seen a Secret, or asked whose a token is. Their contents are never logged.
- level: Metadata
  resources:
  - {group: "", resources: [secrets, configmaps, serviceaccounts/token]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
# Signs of life.
- level: None
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: "", resources: [events, nodes/status, pods/status]}
  - {group: events.k8s.io, resources: [events]}
- level: None
  nonResourceURLs: [/livez*, /readyz*, /healthz*, /version, /api, /api/*, /apis, /apis/*, /openapi/*, /metrics]
# What the cluster's own parts read.
- level: None
  verbs: [get, list, watch]
  userGroups: [system:nodes, system:serviceaccounts:kube-system, system:masters]
- level: None
  verbs: [get, list, watch]
  users: [system:kube-scheduler, system:kube-controller-manager, system:kube-proxy, system:apiserver]
- level: Metadata
`

// admission sets the Pod Security standard of namespaces without labels for it. The
// limits apply if the user turns the plugin EventRateLimit on.
const admission = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: %[1]s, audit: %[1]s, warn: %[1]s}
    exemptions: {namespaces: [kube-system]}
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Server, qps: 200, burst: 2000}
`

// setAuditLimits sets how much of an audit log is kept. The user's arguments, which are
// parsed later, win.
func setAuditLimits(o *options.ServerRunOptions) {
	log := &o.Audit.LogOptions
	log.MaxAge, log.MaxBackups, log.MaxSize = auditDays, auditFiles, auditMegabytes
}

// audited tells whether the user's arguments ask for an audit log.
func audited(o *options.ServerRunOptions) bool {
	return o.Audit.LogOptions.Path != "" || o.Audit.WebhookOptions.ConfigFile != ""
}

// useFiles sets the paths of kedge's audit policy and admission configuration where the
// user's arguments, which are parsed before, set none. writeFiles writes those files.
func useFiles(o *options.ServerRunOptions, c *Config) {
	if audited(o) && o.Audit.PolicyFile == "" {
		o.Audit.PolicyFile = c.Dir.AuditPolicy()
	}
	if c.PodSecurityStandard != "" {
		o.Admission.GenericAdmission.ConfigFile = c.Dir.Admission()
	}
}

// writeFiles writes the files of kedge's that the options name. Upstream reads them when
// the server is built.
func writeFiles(o *options.ServerRunOptions, c *Config) error {
	for _, file := range []struct{ used, own, text string }{
		{o.Audit.PolicyFile, c.Dir.AuditPolicy(), auditPolicy},
		{o.Admission.GenericAdmission.ConfigFile, c.Dir.Admission(), fmt.Sprintf(admission, c.PodSecurityStandard)},
	} {
		if file.used != file.own {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file.own), 0o700); err != nil {
			return fmt.Errorf("make folder of configuration: %w", datadir.Explain(err))
		}
		if err := datadir.WriteFile(file.own, []byte(file.text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
