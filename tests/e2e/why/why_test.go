// Package why makes mistakes of users on a real cluster. `kedge why` must name the cause of each.
package why

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// registries have a registry that answers with faults, and one that is away.
const registries = `
mirrors:
  registry.test:5000: {endpoint: ["http://127.0.0.1:5000"]}
  away.test:5000: {endpoint: ["http://127.0.0.1:5001"]}
`

// faultyRegistry answers for each image with another fault.
func faultyRegistry(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, code string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"no"}]}`, code)
	}
	switch {
	case r.URL.Path == "/v2/":
		w.WriteHeader(http.StatusOK)
	case strings.Contains(r.URL.Path, "/private/"):
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		answer(http.StatusUnauthorized, "UNAUTHORIZED")
	case strings.Contains(r.URL.Path, "/limited/"):
		answer(http.StatusTooManyRequests, "TOOMANYREQUESTS")
	default:
		answer(http.StatusNotFound, "MANIFEST_UNKNOWN")
	}
}

// mistake is a file of the folder mistakes: objects, what is asked about them, and what the answer has.
type mistake struct {
	name, objects string
	// head has ask and says, labels of the namespace, and mild if the object counts as well.
	head map[string]string
}

func mistakes(t *testing.T) (all []mistake) {
	t.Helper()
	files, err := filepath.Glob("mistakes/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("there are %d files of mistakes, %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := mistake{name: strings.TrimSuffix(filepath.Base(file), ".yaml"), objects: string(content), head: map[string]string{}}
		for line := range strings.Lines(m.objects) {
			if key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok && strings.HasPrefix(line, "# ") {
				m.head[key] = strings.TrimSpace(value)
			}
		}
		all = append(all, m)
	}
	return all
}

// pattern returns the expression for a sentence in which * stands for a name.
func pattern(says string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(says), `\*`, `[a-z0-9:-]+`))
}

// TestMistakes asks about 60 mistakes.
func TestMistakes(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	host.WriteFile("/etc/kedge/registries.yaml", registries)
	registry := &http.Server{Handler: http.HandlerFunc(faultyRegistry)}
	listener := host.Listen("127.0.0.1:5000")
	go func() { _ = registry.Serve(listener) }()
	t.Cleanup(func() { registry.Close() })
	cluster.PreloadBusybox(t, host)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Join(network, "agent-1", "--node-taint=only=others:NoSchedule")
	t.Run("healthy", func(t *testing.T) { healthy(t, c, host) })
	t.Run("tenant", func(t *testing.T) { tenant(t, c, host) })
	all := mistakes(t)
	for _, m := range all {
		c.Kubectl("create", "namespace", m.name)
		if labels := m.head["labels"]; labels != "" {
			c.Kubectl("label", "namespace", m.name, labels)
		}
	}
	for _, m := range all {
		c.Eventually("the objects of "+m.name, func() error {
			_, err := c.TryKubectl(m.objects, "apply", "--namespace="+m.name, "-f", "-")
			return err
		})
	}
	harness.Eventually(t, cluster.Patience, "kedge why to name each cause", func() error {
		var wrong []error
		all = slices.DeleteFunc(all, func(m mistake) bool {
			err := m.told(t, host)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", m.name, err))
			}
			return err == nil
		})
		return errors.Join(wrong...)
	})
	// The cluster's DNS asks for some of these names outside. Nobody answers there, and then it asks twice a second, so that pulls of images
	// would wait longer for the same nameserver.
	t.Run("try", func(t *testing.T) { try(t, c, host) })
}

// told returns an error unless `kedge why` says what it should.
func (m *mistake) told(t *testing.T, host *harness.Host) error {
	output, err := host.Kedge(t.Context(), "why", "--namespace="+m.name, m.head["ask"]).CombinedOutput()
	switch {
	case !pattern(m.head["says"]).Match(output):
		return fmt.Errorf("want %s, and it says %s", m.head["says"], output)
	case (err == nil) != (m.head["mild"] != ""):
		return fmt.Errorf("the exit status is wrong: %w", err)
	case !strings.Contains(string(output), "What to do: "):
		return fmt.Errorf("it does not say what to do: %s", output)
	}
	t.Logf("%s", output)
	return nil
}

// healthy asks about objects that work.
func healthy(t *testing.T, c *cluster.Cluster, host *harness.Host) {
	objects, err := os.ReadFile("healthy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl("create", "namespace", "healthy")
	c.Eventually("the healthy objects", func() error {
		_, err := c.TryKubectl(string(objects), "apply", "--namespace=healthy", "-f", "-")
		return err
	})
	asked := strings.Fields(`deployment/web statefulset/store daemonset/each job/work cronjob/nightly pod/prepared service/web service/store service/outside
		ingress/web gateway/front httproute/web pvc/data-store-0 node/server-1 node/agent-1 namespace/healthy pod/store-0`)
	for _, pods := range []string{"web", "each"} {
		for name := range strings.FieldsSeq(c.Kubectl("get", "pods", "--namespace=healthy", "--selector=app="+pods, "--output=name")) {
			asked = append(asked, name)
		}
	}
	if len(asked) < 20 {
		t.Errorf("only %d objects: %v", len(asked), asked)
	}
	for _, object := range append(asked, "--all-namespaces") {
		harness.Eventually(t, cluster.Patience, object+" to be well", func() error {
			output, err := host.Kedge(t.Context(), "why", "--namespace=healthy", object).CombinedOutput()
			if err != nil || strings.Contains(string(output), "What to do: ") || strings.Contains(string(output), "waiting") {
				return fmt.Errorf("it says %s (%w)", output, err)
			}
			return nil
		})
	}
}

// try connects to Services from nodes, and to an Ingress. One Service leads to a port on which nobody listens.
func try(t *testing.T, c *cluster.Cluster, host *harness.Host) {
	const broken = `
apiVersion: v1
kind: Service
metadata: {name: wrong-port}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 9999}]}
`
	c.Eventually("Services to try", func() error {
		_, err := c.TryKubectl(broken, "apply", "--namespace=healthy", "-f", "-")
		return err
	})
	defer c.Kubectl("--namespace=healthy", "delete", "service/wrong-port")
	trials := map[string]string{
		"service/web --try":                "node [a-z0-9-]+ connects to 10\\.43\\.[0-9.]+:80 in ",
		"service/web --try --node=agent-1": "node agent-1 connects to 10\\.43\\.[0-9.]+:80 in ",
		"service/wrong-port --try":         "node [a-z0-9-]+ is refused at 10\\.43\\.[0-9.]+:80",
		"service/web --try --node=nobody":  "the cluster has no node nobody",
		"service/store --try":              "the Service has no address of its own",
		"ingress/web --try":                "http://well\\.test/ at 172\\.31\\.[0-9.]+ answers 200 OK",
		"pod/prepared --try":               "say what pod/prepared cannot reach: give --to",
		"--try":                            "--try needs an object",
	}
	for _, pod := range []string{"pod/store-0", c.Kubectl("get", "pods", "--namespace=healthy", "--selector=app=each", "--field-selector=spec.nodeName=agent-1", "--output=name")} {
		pod = strings.TrimSpace(pod)
		trials[pod+" --to=web:80"] = "(?s)knows web\\.healthy\\.svc\\.cluster\\.local: 10\\.43\\..*it is Service healthy/web with [0-9]+ endpoints.*sends connections to 10\\.43\\.[0-9.]+:80 to 10\\.42\\..*connects to 10\\.43\\."
		trials[pod+" --to=web.healthy"] = "knows web\\.healthy\\.svc\\.cluster\\.local"
		trials[pod+" --to=web:81"] = "Service healthy/web has no TCP port 81"
		trials[pod+" --to=kubernetes:443"] = "namespace default has a Service kubernetes: connect to kubernetes\\.default"
		trials[pod+" --to=wrong-port:80"] = "is refused at 10\\.43\\.[0-9.]+:80"
		trials[pod+" --to=nobody:80"] = "does not know nobody: it was asked for nobody\\.healthy\\.svc\\.cluster\\.local"
		trials[pod+" --to=127.0.0.1:6443"] = "is refused at 127\\.0\\.0\\.1:6443: no process listens there" // the pod's own loopback address
	}
	expect(t, host, trials)
	const closed = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: store}}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}]}
`
	c.Eventually("a NetworkPolicy", func() error {
		_, err := c.TryKubectl(closed, "apply", "--namespace=healthy", "-f", "-")
		return err
	})
	defer c.Kubectl("--namespace=healthy", "delete", "networkpolicy/closed")
	expect(t, host, map[string]string{"pod/store-0 --to=web:80": "(?s)gets no answer from 10\\.43\\.[0-9.]+:80 within 3s, and NetworkPolicies isolate it: healthy/closed \\(Egress of pod store-0\\).*kedge netpol explain healthy/store-0 --to healthy/web-[a-z0-9-]+ --port 8080"})
}

// expect runs kedge why with each words, until it says what is wanted.
func expect(t *testing.T, host *harness.Host, trials map[string]string) {
	t.Helper()
	for words, wanted := range trials {
		harness.Eventually(t, cluster.Patience, "kedge why "+words, func() error {
			output, _ := host.Kedge(t.Context(), append([]string{"why", "--namespace=healthy"}, strings.Fields(words)...)...).CombinedOutput()
			if !regexp.MustCompile(wanted).Match(output) {
				return fmt.Errorf("want %s, and it says %s", wanted, output)
			}
			t.Logf("%s", output)
			return nil
		})
	}
}

// tenant asks with the rights of one namespace. It learns nothing of other namespaces, and nothing of nodes but what the scheduler tells it.
func tenant(t *testing.T, c *cluster.Cluster, host *harness.Host) {
	for _, words := range []string{
		"create namespace tenant", "create namespace others", "--namespace=tenant create serviceaccount tenant",
		"--namespace=tenant create rolebinding tenant --clusterrole=admin --serviceaccount=tenant:tenant",
	} {
		c.Kubectl(strings.Fields(words)...)
	}
	for _, namespace := range []string{"tenant", "others"} {
		c.Kubectl("--namespace="+namespace, "run", "huge", "--image=kedge.test/testserver:1", `--overrides={"spec":{"containers":[{"name":"huge","image":"kedge.test/testserver:1","resources":{"requests":{"memory":"900Gi"}}}]}}`)
	}
	host.Setenv("KUBECONFIG", "/opt/tenant.yaml")
	defer host.Setenv("KUBECONFIG", "")
	for _, words := range []string{
		"config set-cluster own --server=https://127.0.0.1:6443 --insecure-skip-tls-verify=true", "config set-context own --cluster=own --user=tenant --namespace=tenant", "config use-context own",
	} {
		c.Kubectl(strings.Fields(words)...)
	}
	token := strings.TrimSpace(c.Kubectl("--kubeconfig=/etc/kedge/kedge.yaml", "--namespace=tenant", "create", "token", "tenant"))
	c.Kubectl("config", "set-credentials", "tenant", "--token="+token)
	for words, wanted := range map[string]string{
		"pod/huge":                   "the scheduler says: 0/2 nodes are available",
		"--namespace=others po/huge": "you may not read pods in namespace others",
		"node/server-1":              "you may not read nodes",
		"":                           "pod/huge: the scheduler says: 0/2 nodes are available",
		"--all-namespaces":           "You may not read pods",
	} {
		harness.Eventually(t, cluster.Patience, "kedge why "+words, func() error {
			output, _ := host.Kedge(t.Context(), append([]string{"why"}, strings.Fields(words)...)...).CombinedOutput()
			if !strings.Contains(string(output), wanted) {
				return fmt.Errorf("want %s, and it says %s", wanted, output)
			}
			if strings.Contains(string(output), "free") {
				return fmt.Errorf("it tells of nodes: %s", output)
			}
			return nil
		})
	}
}
