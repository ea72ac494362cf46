package gateway

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// otherwise are the tests of h2spec that fail, and why that is no fault.
var otherwise = map[string]string{
	"http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE": "Go ends a connection whose client sets a value twice in one frame",
	// RFC 9113, 8.1.1: "For malformed requests, a server MAY send an HTTP response prior to closing or resetting the stream".
	"http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field":                       "Go answers 400",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value other than \"trailers\"": "Go answers 400",
}

// TestH2Spec runs h2spec, which asks a server for what the specifications of HTTP/2 and of HPACK say.
func TestH2Spec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.web("web")
	roots := w.certificate("web-tls", "web.example.com")
	w.Apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: shared}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web-tls}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: shared}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`)
	w.programmed("shared")
	address := w.addresses()[0]
	w.answers(question{address: address + ":443", url: "https://web.example.com/", roots: roots, http2: true}, 200, "hostname=web")

	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	program, err := image.Build(repository, "github.com/summerwind/h2spec/cmd/h2spec")
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "report.xml")
	output, err := w.client.Command(t.Context(), program, "--tls", "--insecure", "--strict", "--host="+address, "--port=443", "--junit-report="+report).CombinedOutput()
	text, failed := os.ReadFile(report)
	if failed != nil {
		t.Fatalf("h2spec ended with %v:\n%s", err, output)
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Section string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, s := range suites.Suites {
		for _, c := range s.Cases {
			ran++
			name := c.Section + ": " + c.Name
			switch reason := otherwise[name]; {
			case (c.Failure != nil || c.Error != nil) && reason == "":
				t.Errorf("%s fails", name)
			case c.Failure == nil && c.Error == nil && reason != "":
				t.Errorf("%s passes: take it from the table of those that cannot", name)
			}
		}
	}
	t.Logf("%d tests ran", ran)
	if ran < 140 || t.Failed() {
		t.Errorf("h2spec ended with %v:\n%s", err, output)
	}
}
