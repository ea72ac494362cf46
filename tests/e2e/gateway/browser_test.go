package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestBrowser opens an app by name in Chromium, which trusts the authority of its certificate. What it
// shows is in build/gateway/browser.png.
func TestBrowser(t *testing.T) {
	w := newWorld(t)
	harness.Need(t, "chromium", "libnss3-tools")
	w.web("web")
	authority, _ := newCertificates(t)
	w.Apply(authority.secret(t, "web-tls"))
	w.Apply(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {ingress.kedge.dev/redirect-https: "true"}}
spec:
  tls: [{hosts: [web.example.com], secretName: web-tls}]
  rules:
  - host: web.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
`)
	address := w.addresses()[0]
	w.answers(question{address: address + ":80", url: "http://web.example.com/"}, 308)

	const home = "/tmp/browser"
	w.client.WriteFile(home+"/authority.crt", string(authority.certificate))
	if err := os.MkdirAll(w.client.Path(home+"/.pki/nssdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		command := w.client.Command(w.Context(), name, args...)
		command.Env = append(command.Env, "HOME="+home)
		var faults strings.Builder
		command.Stderr = &faults
		output, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, faults.String())
		}
		return string(output)
	}
	database := "sql:" + home + "/.pki/nssdb"
	run("certutil", "-d", database, "-N", "--empty-password")
	run("certutil", "-d", database, "-A", "-n", "test", "-t", "C,,", "-i", home+"/authority.crt")
	browse := func(args ...string) string {
		t.Helper()
		return run("chromium", append([]string{
			"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
			"--user-data-dir=" + home + "/data", "--window-size=800,300", "--host-resolver-rules=MAP web.example.com " + address,
		}, append(args, "http://web.example.com/hello")...)...)
	}
	// http leads to https.
	if page := browse("--dump-dom"); !strings.Contains(page, "path=/hello") || !strings.Contains(page, "proto=https") {
		t.Errorf("Chromium shows %s", page)
	}
	browse("--screenshot=" + home + "/browser.png")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(repository, "build", "gateway")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := harness.CopyFile(w.client.Path(home+"/browser.png"), filepath.Join(out, "browser.png")); err != nil {
		t.Fatal(err)
	}
}
