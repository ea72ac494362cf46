package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestCommand looks at what a command gets from kedge run, and what becomes of its end. The clusters have no
// node, because that is the same for all clusters.
func TestCommand(t *testing.T) {
	m := newMachine(t)
	before := m.state()

	t.Log("the command gets its input, its environment and the arguments, and its status is passed on")
	s := m.command("run", "--api-only", "--", "bash", "-c", `read line; echo "$0: $line"; echo to stderr >&2; [ "$KEPT" = yes ]; "$KEDGE_PROGRAM" kubectl get --raw /version; exit 7`, "--wait")
	s.Env = append(s.Env, "KEPT=yes", "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"))
	s.Stdin = strings.NewReader("from stdin\n")
	m.begin(s).want(t, 7, "--wait: from stdin", "to stderr", `"major": "1"`, "api-server", "removed")
	m.start("run", "--api-only", "--", "bash", "-c", "kill -TERM $$").want(t, 128+int(syscall.SIGTERM))
	m.start("run", "--api-only", "--", "/no/such/program").want(t, 127, "start the command", "no such file")

	t.Log("a signal goes to the command")
	s = m.start("run", "--api-only", "--", "bash", "-c", "trap 'echo stopped in order; exit 4' TERM; echo waiting; while :; do sleep 0.1; done")
	s.waitFor(t, "waiting")
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.want(t, 4, "stopped in order", "removed")

	t.Log("a signal before the command ends everything")
	folder := filepath.Join(m.Scratch("logs"), "early")
	s = m.start("run", "--nodes=2", "--logs", folder, "--", "echo", "never")
	harness.Eventually(t, patience, "the log of a node", func() error {
		return m.Command(t.Context(), "bash", "-c", "grep -q . /run/kedge-clusters/run-*/logs/server-1.log").Run()
	})
	if err := s.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.want(t, 1, "interrupted (interrupt) before the command was started", "logs")
	if text, err := os.ReadFile(filepath.Join(folder, "kedge", "server-1.log")); err != nil || len(text) == 0 {
		t.Errorf("the log of the node has %d bytes, %v", len(text), err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}

	t.Log("the keeper is killed while the command runs")
	s = m.start("run", "--api-only", "--", "bash", "-c", "kill -9 $(grep -o '\"keeper\":[0-9]*' /run/kedge-clusters/run-*/status.json | cut -d: -f2); while :; do sleep 0.1; done")
	s.waitFor(t, "its cluster has failed")
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.want(t, 128+int(syscall.SIGTERM), "killed")

	t.Log("progress as JSON")
	m.start("run", "--api-only", "-o", "json", "--", "true").want(t, 0, `"step":"api-server"`, `"step":"removed"`)
	m.wantState(before)
}

// TestFaults gives kedge run what it cannot do.
func TestFaults(t *testing.T) {
	m := newMachine(t)
	m.start("run", "--", "true").want(t, 0)
	before := m.state()
	for name, test := range map[string]struct {
		args  []string
		words []string
	}{
		"no command":             {nil, []string{"kedge run -- kubectl get nodes"}},
		"no such image":          {[]string{"--image", "/none.tar", "--", "true"}, []string{"--image", "/none.tar", "no such file"}},
		"a manifest of a pipe":   {[]string{"--manifest", "/dev/stdin", "--", "true"}, []string{"write it to a file first"}},
		"a bad image":            {[]string{"--image", "/etc/hostname", "--", "true"}, []string{"load images of /etc/hostname"}},
		"a bad manifest":         {[]string{"--manifest", "/etc/hostname", "--", "true"}, []string{"apply /etc/hostname"}},
		"nothing to wait for":    {[]string{"--wait", "--", "true"}, []string{"give --manifest FILE"}},
		"too many servers":       {[]string{"--nodes=2", "--servers=3", "--", "true"}, []string{"give --nodes=3 or more"}},
		"no number":              {[]string{"--nodes=0", "--", "true"}, []string{"a number such as 3"}},
		"a bad port":             {[]string{"--publish=80", "--", "true"}, []string{"such as 8080:80"}},
		"nodes without nodes":    {[]string{"--api-only", "--nodes=2", "--", "true"}, []string{"leave one of them out"}},
		"a format that is none":  {[]string{"-o=xml", "--", "true"}, []string{"use text or json"}},
		"too little time":        {[]string{"--timeout=1ms", "--", "true"}, []string{"give a longer --timeout"}},
		"a manifest never ready": {[]string{"--timeout=90s", "--manifest", m.manifest("lost"), "--wait", "--", "true"}, []string{"container web of pod lost-", "does not start: Err", "deployment/lost", "give a longer --timeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := machine{t, m.Host}
			inner.start(append([]string{"run"}, test.args...)...).want(t, 1, test.words...)
		})
	}
	m.wantState(before)
}

// TestFailure has a command that fails, with --logs and --keep-on-failure.
func TestFailure(t *testing.T) {
	m := newMachine(t)
	archive := m.testserver()
	m.start("run", "--", "true").want(t, 0)
	before := m.state()
	folder := filepath.Join(m.Scratch("logs"), "evidence")
	secret := filepath.Join(m.Scratch("manifests"), "secret.yaml")
	if err := os.WriteFile(secret, []byte("{apiVersion: v1, kind: Secret, metadata: {name: login}, stringData: {password: hush-hush}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start("run", "--nodes=2", "--image", archive, "--manifest", m.manifest("web"), "--manifest", secret, "--wait", "--logs", folder, "--keep-on-failure", "--", "bash", "-c", query+"; exit 5").
		want(t, 5, "sudo kedge cluster delete", "logs")

	t.Log("the folder has the logs of kedge and of containers, Events and objects, and no secrets")
	for pattern, want := range map[string]string{
		"kedge/server-1.log":               "ready",
		"kedge/agent-1.log":                "ready",
		"containers/*/default_web*/*/*log": "",
		"objects/events.yaml":              "Scheduled",
		"objects/deployments.apps.yaml":    "name: web",
		"objects/secrets.yaml":             "password: (12 characters)",
	} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(files) == 0 {
			t.Errorf("no file %s: %v", pattern, err)
			continue
		}
		text, err := os.ReadFile(files[0])
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q: %v", files[0], want, err)
		}
		if strings.Contains(string(text), "hush-hush") || strings.Contains(string(text), "aHVzaC1odXNo") {
			t.Errorf("%s has the secret", files[0])
		}
	}

	t.Log("the cluster is there until it is deleted")
	list, err := m.Kedge(t.Context(), "cluster", "list").Output()
	if err != nil || !strings.Contains(string(list), "Ready") {
		t.Fatalf("the list is %s, %v", list, err)
	}
	name := strings.Fields(strings.Split(string(list), "\n")[1])[0]
	output, err := m.Command(t.Context(), "bash", "-c", "KUBECONFIG=/run/kedge-clusters/"+name+"/kubeconfig; "+query).CombinedOutput()
	if err != nil || !strings.Contains(string(output), "web-") {
		t.Errorf("the cluster answers %s, %v", output, err)
	}
	m.start("cluster", "delete", name).want(t, 0)
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	m.wantState(before)
}

// TestBesideService runs kedge run beside a kedge that serves the machine, whose settings and variables must
// not matter.
func TestBesideService(t *testing.T) {
	m := newMachine(t)
	m.WriteFile("/etc/kedge/config.yaml", "node-label: [of=service]\ndisable: [coredns]\n")
	server := m.StartConfiguredServer(t)
	server.WaitReady()
	s := m.command("run", "--", "bash", "-c", `"$KEDGE_PROGRAM" kubectl get nodes --show-labels; "$KEDGE_PROGRAM" kubectl get -n kube-system service kube-dns`)
	s.Env = append(s.Env, "KEDGE_PROGRAM="+os.Getenv("KEDGE_BINARY"), "KEDGE_NODE_NAME=of-the-service", "KEDGE_DATA_DIR=/nowhere")
	m.begin(s)
	s.want(t, 0, "server-1", "kube-dns")
	if strings.Contains(s.output.String(), "of=service") || strings.Contains(s.output.String(), "of-the-service") {
		t.Errorf("the cluster has settings of the service:\n%s", s.output)
	}
	m.start("run", "--api-only", "--", "true").want(t, 0)
	if !server.Runs() {
		t.Error("the service has ended")
	}
	if output, err := m.Kedge(t.Context(), "kubectl", "get", "nodes").CombinedOutput(); err != nil || !strings.Contains(string(output), "machine") {
		t.Errorf("the service answers %s, %v", output, err)
	}
}

// TestWithoutRoot has a user without rights.
func TestWithoutRoot(t *testing.T) {
	m := newMachine(t)
	kedge := os.Getenv("KEDGE_BINARY")
	m.CopyProgram(kedge, "/usr/local/bin/kedge")
	as := func(args ...string) *started {
		s := m.program("setpriv", append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "/usr/local/bin/kedge"}, args...)...)
		return m.begin(s)
	}
	before := m.state()
	for _, program := range []string{"newuidmap", "newgidmap"} {
		m.CopyProgram("/bin/true", "/usr/local/bin/"+program)
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		m.WriteFile(file, "root:100000:65536\n")
	}
	as("run", "--", "true").want(t, 1, "/etc/subuid gives the user nobody 0 IDs", "Or run the command as root")
	m.WriteFile("/etc/subuid", "nobody:100000:65536\n")
	as("run", "--", "true").want(t, 1, "/etc/subgid gives the user nobody 0 IDs")
	m.WriteFile("/etc/subgid", "65534:100000:65536\n")
	as("run", "--", "true").want(t, 1, "cgroup", "Or run the command as root") // tests/machines has users who have one
	as("cluster", "list").want(t, 1, "run `sudo kedge cluster list`")
	as("run", "--api-only", "--", "bash", "-c", `/usr/local/bin/kedge kubectl create configmap made; /usr/local/bin/kedge kubectl get serviceaccounts`).
		want(t, 0, "configmap/made created", "default")

	t.Log("a cluster of this user stays, and this user can delete it")
	s := as("run", "--api-only", "--keep-on-failure", "--", "false")
	s.want(t, 1, "To remove it: kedge cluster delete run-")
	_, name, _ := strings.Cut(s.output.String(), "kedge cluster delete ")
	as("cluster", "delete", strings.Fields(name)[0]).want(t, 0)
	as("cluster", "delete", "none").want(t, 1, "run `sudo kedge cluster delete`")
	m.wantState(before)
}

// waitFor waits until the output has some text.
func (s *started) waitFor(t *testing.T, text string) {
	t.Helper()
	harness.Eventually(t, patience, strings.Join(s.Args, " ")+" to print "+text, func() error {
		if !strings.Contains(s.output.String(), text) {
			return errors.New(s.output.String())
		}
		return nil
	})
}
