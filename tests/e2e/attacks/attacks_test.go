// Package attacks plays attackers who control a part of a cluster and want more. There is one file
// for each attacker. Every attack is written as the attacker would run it, with files from the
// disk, curl and kubectl. Each test checks that the attack is refused, and that honest use of the
// same feature still works.
package attacks

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// tlsFolder is the folder of an agent's certificates and keys.
const tlsFolder = "/var/lib/kedge/agent/tls/"

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// credentials are the files of a client certificate on a host.
type credentials struct{ certificate, key string }

// stolen returns the credentials of one of an agent's users, as on its disk: "client-kubelet",
// "client-kube-proxy", "client-flannel", "client-dns" or "client-storage".
func stolen(name string) credentials {
	return credentials{tlsFolder + name + ".crt", tlsFolder + name + ".key"}
}

// attacker is somebody with a shell on a host, who knows the address of a server.
type attacker struct {
	*testing.T
	host   *harness.Host
	server *harness.Server
}

// on returns an attacker with a shell on a host.
func on(c *cluster.Cluster, host *harness.Host) *attacker {
	c.Helper()
	harness.Need(c.T, "curl")
	return &attacker{c.T, host, c.Server}
}

// url returns the address of a path of the server.
func (a *attacker) url(path string) string {
	return "https://" + a.server.Host.Address.String() + ":6443" + path
}

// run runs a program on the attacker's host and returns its output.
func (a *attacker) run(input, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(a.Context(), cluster.Patience)
	defer cancel()
	cmd := a.host.Command(ctx, name, args...)
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	output, err := cmd.Output()
	return strings.TrimSpace(string(output)), err
}

// curl sends a request to the server with credentials, and returns the status and body of the
// answer. args are further arguments of curl.
func (a *attacker) curl(who credentials, path string, args ...string) (status int, body string) {
	a.Helper()
	args = append([]string{
		"--silent", "--show-error", "--max-time", "30", "--cacert", tlsFolder + "server-ca.crt",
		"--resolve", "kubernetes.default.svc:6443:" + a.server.Host.Address.String(),
		"--write-out", "\n%{http_code}",
	}, args...)
	if who.certificate != "" {
		args = append(args, "--cert", who.certificate, "--key", who.key)
	}
	output, err := a.run("", "curl", append(args, "https://kubernetes.default.svc:6443"+path)...)
	if err != nil {
		a.Fatalf("curl %s: %v", path, err)
	}
	end := strings.LastIndex(output, "\n")
	status, err = strconv.Atoi(output[end+1:])
	if err != nil {
		a.Fatalf("curl %s: no status in %q", path, output)
	}
	return status, strings.TrimSpace(output[:max(end, 0)])
}

// kubectl runs kubectl with credentials, and returns its output.
func (a *attacker) kubectl(who credentials, input string, args ...string) (string, error) {
	a.Helper()
	return a.run(input, os.Getenv("KEDGE_BINARY"), append([]string{
		"kubectl", "--server=" + a.url(""), "--certificate-authority=" + tlsFolder + "server-ca.crt",
		"--client-certificate=" + who.certificate, "--client-key=" + who.key, "--request-timeout=30s",
	}, args...)...)
}

// wantForbidden fails the test unless kubectl was told that what it tried is forbidden.
func (a *attacker) wantForbidden(what, output string, err error) {
	a.Helper()
	if err == nil {
		a.Errorf("the attacker may %s: %s", what, output)
		return
	}
	if text := fmt.Sprint(err); !strings.Contains(text, "orbidden") && !strings.Contains(text, "denied") {
		a.Errorf("the attempt to %s failed for another reason than rights: %v", what, err)
	}
}
