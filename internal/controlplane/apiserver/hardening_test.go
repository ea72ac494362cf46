package apiserver

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/audit/policy"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// An audit log has limits and a policy, and pods have a standard. The user's own
// files are used if there are any.
func TestHardening(t *testing.T) {
	theirs := filepath.Join(t.TempDir(), "theirs.yaml")
	for name, test := range map[string]struct {
		args             []string
		standard         string
		audit, admission string // the files used: own, theirs, or none
	}{
		"by default":        {},
		"an audit log":      {args: []string{"audit-log-path=/tmp/log"}, audit: "own"},
		"an audit webhook":  {args: []string{"audit-webhook-config-file=/tmp/hook"}, audit: "own"},
		"a policy":          {args: []string{"audit-log-path=/tmp/log", "audit-policy-file=" + theirs}, audit: "theirs"},
		"a standard":        {standard: "baseline", admission: "own"},
		"a file of theirs":  {args: []string{"admission-control-config-file=" + theirs}, admission: "theirs"},
		"a policy, no logs": {args: []string{"audit-policy-file=" + theirs}, audit: "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{
				Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
				Dir: datadir.Dir(t.TempDir()), PodSecurityStandard: test.standard, Args: test.args,
			}
			o, err := newOptions(&c)
			if err != nil {
				t.Fatal(err)
			}
			if err := writeFiles(o, &c); err != nil {
				t.Fatal(err)
			}
			for _, file := range []struct{ used, own, want, contains string }{
				{o.Audit.PolicyFile, c.Dir.AuditPolicy(), test.audit, "level: Metadata"},
				{o.Admission.GenericAdmission.ConfigFile, c.Dir.Admission(), test.admission, "enforce: " + test.standard},
			} {
				want := map[string]string{"own": file.own, "theirs": theirs}[file.want]
				if file.used != want {
					t.Errorf("uses %q, want %q", file.used, want)
				}
				text, err := os.ReadFile(file.own)
				if (err == nil) != (file.want == "own") || err == nil && !strings.Contains(string(text), file.contains) {
					t.Errorf("%s has %q, %v", file.own, text, err)
				}
			}
			if log := o.Audit.LogOptions; log.MaxAge*log.MaxBackups*log.MaxSize == 0 {
				t.Errorf("the log has no limits: %+v", log)
			}
		})
	}
	if _, err := policy.LoadPolicyFromBytes([]byte(auditPolicy)); err != nil {
		t.Error(err)
	}
}
