package install

import (
	"crypto/tls"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

// TestSecrets gives install.sh tokens and passwords as flags, and checks that they are afterwards
// only in a file that only root can read.
func TestSecrets(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	for name, s := range map[string]system{
		"systemd": {marker: "/run/systemd/system/none", unit: "/etc/systemd/system/kedge.service"},
		"openrc":  {marker: "/run/openrc/softlevel", unit: "/etc/init.d/kedge"},
	} {
		t.Run(name, func(t *testing.T) {
			s.host = network.NewHost(t, name)
			s.addManager(t)
			newRelease(t, releases.Script("v1.0.0+test", "server | agent) exec sleep 1007 ;;\nstatus) [ -e /run/fake/pid ] ;;")).write(t, s.host, "/opt/release")
			const environment = "/etc/kedge/kedge.env"
			want := func(secret, environmentText, command string) {
				t.Helper()
				if got := sh(t, s.host, "grep -rl "+secret+" /etc /usr/local /run || true"); got != environment {
					t.Errorf("%s is in %s", secret, got)
				}
				if got := sh(t, s.host, "stat -c %a "+environment+"; cat "+environment); got != "600\n"+environmentText {
					t.Errorf("the environment is\n%s\nwant\n%s", got, environmentText)
				}
				wants(t, sh(t, s.host, "cat "+s.unit), command)
			}
			sh(t, s.host, "sh /opt/release/install.sh agent --token K10hush --server=https://server:6443")
			want("K10hush", "KEDGE_TOKEN='K10hush'", "agent --server=https://server:6443")

			t.Log("what an earlier install.sh has written")
			for _, file := range []string{s.unit, "/etc/kedge/command"} {
				sh(t, s.host, "sed -i 's|agent --server|agent --token=K10flag --server|' "+file)
			}
			sh(t, s.host, "sh /opt/release/install.sh")
			want("K10flag", "KEDGE_TOKEN='K10flag'", "agent --server=https://server:6443")

			t.Log("all secrets there are")
			sh(t, s.host, `INSTALL_KEDGE_EXEC='server --datastore-endpoint=postgres://kedge:unsaidone&more?@db/kedge --agent-token=unsaidone -s3-access-key unsaidone' sh /opt/release/install.sh --s3-secret-key=unsaidone --s3`)
			want("unsaidone", "KEDGE_AGENT_TOKEN='unsaidone'\nKEDGE_DATASTORE_ENDPOINT='postgres://kedge:unsaidone&more?@db/kedge'\nKEDGE_S3_ACCESS_KEY='unsaidone'\nKEDGE_S3_SECRET_KEY='unsaidone'\nKEDGE_TOKEN='K10flag'", "server --s3")
		})
	}
}

// TestRedirect downloads by https from a server that redirects to http, where anybody on the way
// could answer.
func TestRedirect(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host, mirror := network.NewHost(t, "host"), network.NewHost(t, "mirror")
	good := newRelease(t, releases.Script("v1.0.0+test", ""))
	good.write(t, host, "/opt/good")
	plain := good.serve(t, mirror)
	certificate, key := cluster.Certificate(t, "mirror")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	listener := tls.NewListener(mirror.Listen(net.JoinHostPort(mirror.Address.String(), "443")), &tls.Config{Certificates: []tls.Certificate{pair}})
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := filepath.Base(r.URL.Path)
			if strings.HasPrefix(r.URL.Path, "/moved/") {
				http.Redirect(w, r, plain+"/"+name, http.StatusFound)
				return
			}
			_, _ = w.Write(good[name])
		}))
	}()
	host.WriteFile("/opt/mirror.pem", string(certificate))
	host.WriteFile("/etc/hosts", mirror.Address.String()+" mirror\n")
	host.Setenv("CURL_CA_BUNDLE", "/opt/mirror.pem")
	refused(t, host, "INSTALL_KEDGE_FROM=https://mirror/moved sh /opt/good/install.sh", "there is no SHA256SUMS in https://mirror/moved")
	wants(t, sh(t, host, "INSTALL_KEDGE_FROM=https://mirror/release sh /opt/good/install.sh"), "v1.0.0+test is installed")
}
