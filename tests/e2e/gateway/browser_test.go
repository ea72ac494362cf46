package gateway

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestBrowser opens an app by name in Chromium, which trusts the authority of its certificate. What it
// shows is in build/gateway/browser.png.
func TestBrowser(t *testing.T) {
	t.Parallel()
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

	home := w.client.Scratch("browser")
	if err := os.WriteFile(home+"/authority.crt", authority.certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(home+"/.pki/nssdb", 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		command := w.client.Command(ctx, name, args...)
		command.Env = append(command.Env, "HOME="+home)
		var output, faults beginning
		command.Stdout, command.Stderr = &output, &faults
		command.WaitDelay = time.Second // Its children have its outputs open.
		if err := command.Run(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", name, err, faults.String())
		}
		return output.String(), nil
	}
	database := "sql:" + home + "/.pki/nssdb"
	for _, args := range [][]string{{"-N", "--empty-password"}, {"-A", "-n", "test", "-t", "C,,", "-i", home + "/authority.crt"}} {
		if _, err := run("certutil", append([]string{"-d", database}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	browse := func(args ...string) (string, error) {
		return run("chromium", append([]string{
			"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
			"--user-data-dir=" + home + "/data", "--window-size=800,300", "--host-resolver-rules=MAP web.example.com " + address,
		}, append(args, "http://web.example.com/hello")...)...)
	}
	w.Eventually("Chromium to show the app, by https", func() error {
		page, err := browse("--dump-dom")
		if err == nil && (!strings.Contains(page, "path=/hello") || !strings.Contains(page, "proto=https")) {
			err = fmt.Errorf("it shows %s", page)
		}
		return err
	})
	if _, err := browse("--screenshot=" + home + "/browser.png"); err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(repository, "build", "gateway")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := harness.CopyFile(home+"/browser.png", filepath.Join(out, "browser.png")); err != nil {
		t.Fatal(err)
	}
}

// beginning keeps the first bytes of what a program prints. certutil asks for a
// password without end if the database is not as expected.
type beginning struct{ strings.Builder }

func (b *beginning) Write(text []byte) (int, error) {
	_, _ = b.Builder.Write(text[:min(len(text), max(0, 64<<10-b.Len()))])
	return len(text), nil
}
