package attacks

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const dnsFolder = "/etc/kedge/dns/"

// configMap has the attacker's part, and a part that shows whether the ConfigMap is used.
const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns-custom, namespace: kube-system}
data:
  %s: |
%s
  marker.server: |
    %[3]s {
      hosts {
        192.0.2.99 %[3]s
      }
    }
`

// TestNamespaceUserDNS lets a user who may write the ConfigMap coredns-custom, and read events, try
// to read files of the hosts or settings of kedge, or to end kedge.
func TestNamespaceUserDNS(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	const secret, file = "hunter2", "/etc/kedge/secret"
	host.WriteFile(file, "192.0.2.66 "+secret+".stolen.test\n")
	host.WriteFile(dnsFolder+"zone", secret+" "+secret+"\n")
	host.WriteFile(dnsFolder+"good", "@ 60 IN SOA ns.good.test. root.good.test. 1 60 60 60 60\n@ 60 IN NS ns.good.test.\nwww 60 IN A 192.0.2.80\n")
	host.WriteFile(dnsFolder+"hosts", "192.0.2.81 in-the-folder.test\n")
	host.Setenv("HUNTER", secret)
	if output, err := host.Command(t.Context(), "ln", "-s", file, dnsFolder+"link").CombinedOutput(); err != nil {
		t.Fatalf("make a link: %v: %s", err, output)
	}
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.RunWeb("asker", "server-1")
	asks := func(name, want string) error {
		output, err := cluster.OnNode(host, "asker", "/testserver", "lookup", "host", name+".")
		if err != nil || !strings.Contains(output, want) {
			return fmt.Errorf("%s is %q, %v", name, output, err)
		}
		return nil
	}
	number := 0
	// set writes the ConfigMap and returns its UID. A second part shows whether the ConfigMap is
	// used: then the name marker has an address.
	set := func(key, text string) (uid, marker string) {
		number++
		marker = fmt.Sprintf("marker%d.test", number)
		if _, err := c.TryKubectl("", "delete", "configmap", "-n", "kube-system", "coredns-custom", "--ignore-not-found"); err != nil {
			t.Fatal(err)
		}
		indented := "    " + strings.ReplaceAll(text, "\n", "\n    ")
		if _, err := c.TryKubectl(fmt.Sprintf(configMap, key, indented, marker), "apply", "--namespace=kube-system", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		object, err := c.Client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns-custom", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(object.UID), marker
	}
	for name, part := range map[string]struct{ key, text string }{
		"hosts":               {"a.override", "hosts " + file + " {\n  fallthrough\n}"},
		"file":                {"a.override", "file " + file + " stolen.test"},
		"file by a link":      {"a.override", "file " + dnsFolder + "link stolen.test"},
		"file by dots":        {"a.override", "file " + dnsFolder + "../secret stolen.test"},
		"file after a brace":  {"a.override", "file " + dnsFolder + "good good.test {\n  reload 1m\n} x " + file},
		"a zone that is none": {"a.override", "file " + dnsFolder + "zone stolen.test"},
		"forward":             {"a.override", "forward stolen.test " + file},
		"relative":            {"a.override", "forward stolen.test " + strings.TrimPrefix(file, "/")},
		"tls":                 {"a.override", "forward stolen.test tls://192.0.2.1 {\n  tls " + file + " " + file + "\n}"},
		"weights":             {"a.override", "loadbalance weighted " + file},
		"import":              {"a.server", "stolen.test {\n  import " + file + "\n}"},
		"import by a log":     {"a.server", "stolen.test {\n  log (" + file + ")\n  import " + file + "\n}"},
		"environment":         {"a.override", "forward . {$HUNTER}"},
		"kubeconfig":          {"a.server", "stolen.test {\n  kubernetes stolen.test {\n    kubeconfig " + file + "\n  }\n}"},
		"every address":       {"a.server", "stolen.test {\n  bind 0.0.0.0\n  whoami\n}"},
		"a template's memory": {"a.override", "template IN TXT stolen.test {\n  answer \"{{ printf `%1000000d` 1 }}\"\n}"},
		"a variable's memory": {"a.override", "template IN TXT stolen.test {\n  var a repeat('x', 1000000)\n  expr a == a\n}"},
	} {
		uid, marker := set(part.key, part.text)
		c.Eventually(name+" to be refused", func() error {
			events, err := c.Client.CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid})
			if err != nil {
				return err
			}
			for _, event := range events.Items {
				if strings.Contains(event.Message, secret) {
					t.Errorf("%s: the event shows it: %s", name, event.Message)
				}
			}
			if len(events.Items) > 0 {
				return nil
			}
			if asks(marker, "192.0.2.99") == nil {
				t.Errorf("%s: it is used", name)
				if asks(secret+".stolen.test", "192.0.2.66") == nil {
					t.Errorf("%s: the file is served", name)
				}
				return nil
			}
			return errors.New("no event says so")
		})
	}
	// The lexer drops YAML's \r, which makes the text the name of a variable.
	uid, _ := set("a.override", "x")
	pieces := `{"data": {"a.override": "forward . {\r$HUNTER}"}}`
	c.Kubectl("patch", "configmap", "-n", "kube-system", "coredns-custom", "--type=merge", "--patch="+pieces)
	c.Eventually("a variable in pieces to be refused", func() error {
		events, err := c.Client.CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid})
		if err != nil {
			return err
		}
		if len(events.Items) < 2 {
			return errors.New("no event says so")
		}
		for _, event := range events.Items {
			if strings.Contains(event.Message, secret) {
				t.Errorf("a variable of kedge's is shown: %s", event.Message)
			}
		}
		return nil
	})
	if log := server.Log(); strings.Contains(log, secret+`"`) || strings.Contains(log, secret+".stolen") {
		t.Error("the log shows the content of a file")
	}

	t.Log("honest parts still work")
	set("good.override", "file "+dnsFolder+"good good.test\nhosts {\n  192.0.2.82 inline.test\n  fallthrough\n}")
	for name, address := range map[string]string{"www.good.test": "192.0.2.80", "in-the-folder.test": "192.0.2.81", "inline.test": "192.0.2.82"} {
		c.Eventually(name+" to be found", func() error { return asks(name, address) })
	}
}
