package addons

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// place is the folder of charts on the server, as in k3s.
const place = "/var/lib/kedge/server/static/charts/"

// helmChart returns a HelmChart in kube-system in YAML.
func helmChart(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: %s, namespace: kube-system}\nspec:\n  %s\n",
		name, strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
}

// buildHelm builds the helm command from its module.
func buildHelm(t *testing.T) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "helm")
	build := exec.Command("go", "build", "-o", path, "helm.sh/helm/v4/cmd/helm")
	build.Dir = repository
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build helm: %v\n%s", err, output)
	}
	return path
}

// helm runs the helm command on the server's host.
func (s *scenario) helm(command string, args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), cluster.Patience)
	defer cancel()
	output, err := s.Server.Host.Command(ctx, command, append([]string{"--kubeconfig=/etc/kedge/kedge.yaml"}, args...)...).Output()
	if err != nil {
		s.Fatal(err)
	}
	return string(output)
}

// release is a release in the output of `helm list` and `helm history`.
type release struct {
	Revision    any    `json:"revision"`
	Status      string `json:"status"`
	Chart       string `json:"chart"`
	Description string `json:"description"`
}

// history returns the releases in the output of helm history.
func (s *scenario) history(command, namespace, name string) (found []release) {
	s.Helper()
	if err := json.Unmarshal([]byte(s.helm(command, "history", name, "--namespace="+namespace, "--output=json")), &found); err != nil {
		s.Fatal(err)
	}
	return found
}

// state waits until a HelmChart's condition Failed has a status, and returns its message.
func (s *scenario) state(name, failed string, words ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("HelmChart %s to have Failed=%s with %q", name, failed, words), func() error {
		text, err := s.TryKubectl("", "get", "helmchart", name, "--namespace=kube-system", "-o",
			`jsonpath={.status.conditions[?(@.type=="Failed")].status} {.status.conditions[?(@.type=="Failed")].message}`)
		if err != nil {
			return err
		}
		status, message, _ := strings.Cut(text, " ")
		for _, word := range words {
			if !strings.Contains(message, word) {
				return fmt.Errorf("it is %s: %s", status, message)
			}
		}
		if status != failed {
			return fmt.Errorf("it is %s: %s", status, message)
		}
		s.Logf("%s: %s", name, message)
		return nil
	})
}

// config waits until the ConfigMap of a release has a value in its data.
func (s *scenario) config(namespace, name, key, want string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("release %s to have %s=%q", name, key, want), func() error {
		found, err := s.Client.CoreV1().ConfigMaps(namespace).Get(s.Context(), name, metav1.GetOptions{})
		if err == nil && found.Data[key] != want {
			err = fmt.Errorf("it has %v", found.Data)
		}
		return err
	})
}

// charts goes through the whole life of a chart, by a file with a HelmChart.
func (s *scenario) charts() {
	command := buildHelm(s.T)
	s.unpacked(place+"web", "1.0.0")
	base := "chart: web\ntargetNamespace: apps\ncreateNamespace: true\ntimeout: 20s\n"

	s.Run("install", func(t *testing.T) {
		s := s.in(t)
		// The HelmChartConfig comes first. Otherwise the chart might be installed before it and
		// then upgraded.
		s.write("web.yaml", `
apiVersion: helm.cattle.io/v1
kind: HelmChartConfig
metadata: {name: web, namespace: kube-system}
spec: {valuesContent: "extra: of the config"}
---
`+helmChart("web", base+"valuesContent: |\n  greeting: first\n  extra: of the chart\nset: {sub.of: \"1,2\"}"))
		s.state("web", "False", "Installed chart web-1.0.0 as revision 1 in apps")
		s.config("apps", "web", "greeting", "first")
		s.config("apps", "web", "extra", "of the config")
		s.config("apps", "web-sub", "of", "1,2")
		s.Kubectl("get", "gadgets.example.com", "web", "--namespace=apps")
		s.Kubectl("wait", "--for=condition=Complete", "--timeout=60s", "job/web-pre-install", "--namespace=apps")
		s.Kubectl("rollout", "status", "deployment/web", "--namespace=apps", "--timeout=60s")
		s.Told("kube-system", "web", "Installed chart web-1.0.0")
		if found := s.history(command, "apps", "web"); len(found) != 1 || found[0].Status != "deployed" || found[0].Chart != "web-1.0.0" {
			t.Errorf("helm sees %+v", found)
		}
		if pods := s.Kubectl("get", "pods", "--namespace=kube-system", "-o", "name"); pods != "" {
			t.Errorf("there are pods in kube-system: %s", pods)
		}
	})

	s.Run("upgrade", func(t *testing.T) {
		s := s.in(t)
		s.unpacked(place+"web", "1.1.0")
		s.write("web.yaml", helmChart("web", base+"valuesContent: 'greeting: second'"))
		s.state("web", "False", "Upgraded chart web-1.1.0 as revision")
		s.config("apps", "web", "greeting", "second")
		s.config("apps", "web", "version", "1.1.0")
		s.config("apps", "web", "extra", "none") // the HelmChartConfig was removed
	})

	s.Run("fail and roll back", func(t *testing.T) {
		s := s.in(t)
		before := len(s.history(command, "apps", "web"))
		s.write("web.yaml", helmChart("web", base+"valuesContent: |\n  greeting: third\n  image: localhost/none:1"))
		s.state("web", "True", "rolled back", "when the HelmChart changes")
		s.Told("kube-system", "web", "rolled back", "Deployment/apps/web")
		s.config("apps", "web", "greeting", "second")
		found := s.history(command, "apps", "web")
		if len(found) != before+2 || found[before].Status != "failed" || found[before+1].Status != "deployed" || !strings.HasPrefix(found[before+1].Description, "Rollback to") {
			t.Errorf("helm sees %+v", found)
		}
		s.Kubectl("rollout", "status", "deployment/web", "--namespace=apps", "--timeout=60s")
		// A failing hook is a different fault with the same result.
		s.write("web.yaml", helmChart("web", base+"valuesContent: |\n  greeting: third\n  hook: 1"))
		s.state("web", "True", "rolled back", "pre-upgrade")
		s.config("apps", "web", "greeting", "second")
		s.write("web.yaml", helmChart("web", base+"valuesContent: 'greeting: fourth'"))
		s.state("web", "False", "Upgraded")
		s.config("apps", "web", "greeting", "fourth")
	})

	s.Run("restart", func(t *testing.T) {
		s := s.in(t)
		before := len(s.history(command, "apps", "web"))
		s.Server.Restart()
		s.Client = s.Server.Client()
		s.helm(command, "upgrade", "web", place+"web", "--namespace=apps", "--reuse-values", "--set=extra=of the command")
		s.config("apps", "web", "extra", "of the command")
		time.Sleep(3 * time.Second) // time for a change that must not happen
		if found := s.history(command, "apps", "web"); len(found) != before+1 {
			t.Errorf("helm sees %+v", found)
		}
	})

	s.Run("conflict", func(t *testing.T) {
		s := s.in(t)
		s.Kubectl("patch", "configmap", "web", "--namespace=apps", "--patch", `{"data": {"greeting": "of a user"}}`)
		s.write("web.yaml", helmChart("web", base+"valuesContent: 'greeting: fifth'"))
		s.state("web", "True", "kubectl-patch", "set forceConflicts")
		s.config("apps", "web", "greeting", "of a user")
		s.write("web.yaml", helmChart("web", base+"forceConflicts: true\nvaluesContent: 'greeting: fifth'"))
		s.state("web", "False", "Upgraded")
		s.config("apps", "web", "greeting", "fifth")
	})

	s.Run("remove", func(t *testing.T) {
		s := s.in(t)
		s.drop("web.yaml")
		s.Kubectl("wait", "--for=delete", "--timeout=60s", "helmchart/web", "--namespace=kube-system")
		if found := s.helm(command, "list", "--all-namespaces", "--short"); strings.TrimSpace(found) != "" {
			t.Errorf("helm sees %s", found)
		}
		if _, err := s.Client.AppsV1().Deployments("apps").Get(s.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the Deployment is there: %v", err)
		}
		s.Kubectl("get", "crd", "gadgets.example.com") // Helm keeps CRDs too
	})

	s.Run("sources", func(t *testing.T) { s.in(t).sources() })
}

// system applies objects in kube-system.
func (s *scenario) system(text string) {
	s.Helper()
	s.Eventually("objects to be applied", func() error {
		_, err := s.TryKubectl(text, "apply", "--namespace=kube-system", "-f", "-")
		return err
	})
}

// sources installs charts from every kind of source.
func (s *scenario) sources() {
	archives := map[string][]byte{"2.0.0": pack(s.T, "2.0.0"), "2.1.0": pack(s.T, "2.1.0")}
	handler := charts(archives)
	secure := httptest.NewUnstartedServer(handler)
	secure.Listener.Close()
	secure.Listener = s.Server.Host.Listen("127.0.0.1:8443")
	secure.StartTLS()
	s.Cleanup(secure.Close)
	plain := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	listener := s.Server.Host.Listen("127.0.0.1:8080")
	go func() { _ = plain.Serve(listener) }()
	s.Cleanup(func() { plain.Close() })
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	s.system(secrets("127.0.0.1:8443"))
	if err := s.writeFile(place+"packed-2.0.0.tgz", archives["2.0.0"]); err != nil {
		s.Fatal(err)
	}
	trusted := "repoCA: |\n  " + strings.ReplaceAll(strings.TrimSpace(authority), "\n", "\n  ") + "\n"
	for name, source := range map[string]struct{ spec, version string }{
		"k3s":        {"chart: https://%{KUBERNETES_API}%/static/charts/packed-2.0.0.tgz", "2.0.0"},
		"inline":     {"chartContent: " + base64.StdEncoding.EncodeToString(archives["2.0.0"]), "2.0.0"},
		"repository": {"chart: web\nversion: 2.0.0\nrepo: https://127.0.0.1:8443/repo\nauthSecret: {name: basic}\n" + trusted, "2.0.0"},
		"latest":     {"chart: web\nrepo: https://127.0.0.1:8443/repo\nauthSecret: {name: basic}\n" + trusted, "2.1.0"},
		"address":    {"chart: http://127.0.0.1:8080/repo/web-2.1.0.tgz\nauthSecret: {name: basic}", "2.1.0"},
		"registry":   {"chart: oci://127.0.0.1:8443/charts/web\nversion: 2.0.0\ndockerRegistrySecret: {name: docker}\n" + trusted, "2.0.0"},
		"newest":     {"chart: web\nrepo: oci://127.0.0.1:8443/charts\ndockerRegistrySecret: {name: docker}\ninsecureSkipTLSVerify: true", "2.1.0"},
	} {
		s.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.system(helmChart(name, source.spec+"\ntargetNamespace: "+name+"\ncreateNamespace: true"))
			s.state(name, "False", "Installed chart web-"+source.version)
			s.config(name, name, "version", source.version)
			s.Kubectl("delete", "helmchart", name, "--namespace=kube-system", "--timeout=60s")
			if _, err := s.Client.CoreV1().ConfigMaps(name).Get(s.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the release is there: %v", err)
			}
		})
	}
	for name, fault := range map[string]struct{ spec, want string }{
		"nowhere":   {"chart: nowhere", "there is no chart"},
		"outside":   {"chart: ../../tls", "is not in"},
		"refused":   {"chart: web\nrepo: https://127.0.0.1:8443/repo\n" + trusted, "401"},
		"untrusted": {"chart: web\nrepo: https://127.0.0.1:8443/repo\nauthSecret: {name: basic}", "certificate"},
		"version":   {"chart: web\nversion: 3.0.0\nrepo: https://127.0.0.1:8443/repo\nauthSecret: {name: basic}\n" + trusted, `no chart web of version "3.0.0"`},
		"namespace": {"chart: packed-2.0.0.tgz\ntargetNamespace: nothing", "createNamespace"},
		"values":    {"chart: packed-2.0.0.tgz\nvaluesContent: '[a'", "read values"},
		"policy":    {"chart: packed-2.0.0.tgz\nfailurePolicy: pray", "unknown failurePolicy"},
		"halted":    {"chart: packed-2.0.0.tgz\nset: {hook: 1}\nfailurePolicy: abort\ntimeout: 20s\ntargetNamespace: default", "pre-install"},
	} {
		s.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.system(helmChart(name, fault.spec))
			s.state(name, "True", fault.want)
			s.Told("kube-system", name, fault.want)
			s.Kubectl("delete", "helmchart", name, "--namespace=kube-system", "--timeout=60s")
		})
	}
}
