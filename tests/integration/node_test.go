package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestStaticPod adds a manifest to the node's folder, and removes it.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	const path = "/var/lib/kedge/agent/pod-manifests/static.yaml"
	s.server.Host.WriteFile(path, `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: `+s.namespace+`}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: `+testserver+`, args: [sleep]}]
`)
	mirror := "static-" + s.server.Host.Name
	s.pod(mirror)
	if err := os.Remove(s.server.Host.Path(path)); err != nil {
		t.Fatal(err)
	}
	s.eventually("the static pod to be gone", func() error { return s.gone(mirror) })
}

// TestTimersOfContainers makes kedge's timers late, as on an idle node, and checks that a
// container's timers are exact.
func TestTimersOfContainers(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", s.server.Process().Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		// The write fails for a thread that has ended.
		_ = os.WriteFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns"), []byte("20000000"), 0)
	}
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: exact}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "cat /proc/self/timerslack_ns; sleep 600"]}]
`)
	s.pod("exact")
	s.eventually("the slack of its main process's child", func() error {
		if slack := s.kubectl("logs", "exact"); strings.TrimSpace(slack) != "50000" {
			return fmt.Errorf("it is %q ns", slack)
		}
		return nil
	})
	if slack, err := s.in("exact", "cat", "/proc/self/timerslack_ns"); slack != "50000" {
		t.Errorf("what exec starts has a slack of %s ns, %v", slack, err)
	}
}

// TestComponentStatuses checks that kubectl's view of the control plane is right.
func TestComponentStatuses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	output := s.kubectl("get", "componentstatuses", "--no-headers")
	var healthy []string
	for line := range strings.Lines(output) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "Healthy" {
			healthy = append(healthy, fields[0])
		}
	}
	slices.Sort(healthy)
	if strings.Join(healthy, " ") != "controller-manager etcd-0 scheduler" {
		t.Errorf("kubectl printed\n%s", output)
	}
}

// TestStatus checks that `kedge status` names the components, and that all are ready.
func TestStatus(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	output, err := s.server.Host.Kedge(s.ctx, "status", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Components []struct{ Name, State string }
	}
	if err := json.Unmarshal(output, &report); err != nil || len(report.Components) < 10 {
		t.Fatalf("kedge printed %s, %v", output, err)
	}
	for _, component := range report.Components {
		if component.State != "Ready" {
			t.Errorf("%s is %s", component.Name, component.State)
		}
	}
}

// TestListensOnlyWhereDesigned compares the sockets of kedge's process with the
// list in DESIGN.md, "One port". NodePorts need no sockets.
func TestListensOnlyWhereDesigned(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	address := s.server.Host.Address.String()
	want := []string{
		"tcp *:10250",
		"tcp *:6443",
		// containerd listens there. The kubelet fetches the streams of exec and attach from it,
		// each with a token, because upstream has no other way.
		"tcp 127.0.0.1:10010",
		"tcp 127.0.0.1:10256",
		"tcp 127.0.0.1:10257",
		"tcp 127.0.0.1:10259",
		"tcp " + address + ":10053",
		"tcp " + address + ":10257",
		"tcp " + address + ":10259",
		"udp " + address + ":10053",
		"udp 0.0.0.0:8472",
	}
	slices.Sort(want)
	// The kernel's sockets name no process, and those of other tests name theirs.
	output, err := s.server.Host.Command(s.ctx, "ss", "-Hlntup").Output()
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("pid=%d,", lockedBy(t, s.server.Host.Path("/var/lib/kedge/lock")))
	var got []string
	for line := range strings.Lines(string(output)) {
		if fields := strings.Fields(line); strings.Contains(line, own) || !strings.Contains(line, "pid=") {
			got = append(got, fields[0]+" "+fields[4])
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("kedge listens on\n  %s\nand should on\n  %s\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "), output)
	}
}

// TestRunFolder plays another user of the host. The root of a pod with users of its own is one, and
// must pass through /run/kedge to its file system. Nobody else may list, read or write anything
// there, or connect to a socket.
func TestRunFolder(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.sleeper("main")
	container := strings.TrimPrefix(s.pod("main").Status.ContainerStatuses[0].ContainerID, "containerd://")
	run := func(command ...string) (string, error) {
		output, err := s.server.Host.Command(s.ctx, command[0], command[1:]...).Output()
		return strings.TrimSpace(string(output)), err
	}
	nobody := func(script string) (string, error) {
		return run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script)
	}
	if _, err := nobody("test -d /run/kedge/containerd/io.containerd.runtime.v2.task/k8s.io/" + container); err != nil {
		t.Errorf("another user does not get to the folder of a container: %v", err)
	}
	list, err := run("find", "/run/kedge", "-xdev", "-path", "*/rootfs", "-prune", "-o", "-print")
	if err != nil || !strings.Contains(list, "/run/kedge/kedge.sock") || !strings.Contains(list, "/run/kedge/containerd/containerd.sock") {
		t.Fatalf("list the folder: %v: %s", err, list)
	}
	// A link leads to the helpers, which are public.
	open, err := nobody("for path in " + strings.ReplaceAll(list, "\n", " ") +
		`; do if test -w "$path" || { test ! -L "$path" && test -r "$path"; }; then ls -ld "$path"; fi; done`)
	if err != nil || open != "" {
		t.Errorf("another user can read or write, %v:\n%s", err, open)
	}
	if abstract, err := run("sh", "-c", "ss -Hlxp | grep -E ' @' || true"); err != nil || abstract != "" {
		t.Errorf("these sockets have no modes, %v:\n%s", err, abstract)
	}
}

// lockedBy reads the process ID that kedge has on its host from the lock of a data directory.
func lockedBy(t *testing.T, lock string) int {
	t.Helper()
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestNobodyLearnsAnything asks for every path of the API, and asks the other ports, without
// credentials. Only the health of the API and its certificate authority may be answered.
func TestNobodyLearnsAnything(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var root struct{ Paths []string }
	text, err := s.client.Discovery().RESTClient().Get().AbsPath("/").DoRaw(s.ctx)
	if err == nil {
		err = json.Unmarshal(text, &root)
	}
	if err != nil || len(root.Paths) < 50 {
		t.Fatalf("list paths: %s, %v", text, err)
	}
	client := anonymous(s.config)
	node := s.server.Host.Address.String()
	// A joining node checks its token against the authority.
	public := []string{"/healthz", "/livez", "/readyz", "/cacerts"}
	paths := append(root.Paths, "/", "/api/v1/namespaces/kube-system/secrets", "/api/v1/nodes/"+s.server.Host.Name+"/proxy/pods",
		"/metrics/slis", "/v1-kedge/connect", "/cacerts", "/ping", "/debug/flags/v", "/openapi/v3", "/.well-known/openid-configuration")
	for _, path := range paths {
		status := statusOf(t, client, "https://"+net.JoinHostPort(node, "6443")+path)
		switch {
		case slices.Contains(public, path) && status != http.StatusOK:
			t.Errorf("API %s: %d, want 200", path, status)
		case !slices.Contains(public, path) && status != http.StatusUnauthorized && status != http.StatusForbidden:
			t.Errorf("API %s: %d, want it refused", path, status)
		}
	}
	for _, path := range []string{"/pods", "/runningpods/", "/metrics", "/metrics/cadvisor", "/metrics/dns", "/metrics/proxy", "/metrics/slis", "/stats/summary", "/healthz", "/configz",
		"/logs/", "/containerLogs/kube-system/x/y", "/exec/default/x/y", "/run/default/x/y", "/debug/pprof/", "/checkpoint/a/b/c"} {
		if status := statusOf(t, client, "https://"+net.JoinHostPort(node, "10250")+path); status != http.StatusUnauthorized {
			t.Errorf("kubelet %s: %d, want 401", path, status)
		}
	}
	for _, port := range []string{"10257", "10259"} {
		for _, address := range []string{"127.0.0.1", node} {
			for _, path := range []string{"/metrics", "/metrics/slis", "/metrics/resources", "/configz", "/debug/pprof/"} {
				status := statusOf(t, client, "https://"+net.JoinHostPort(address, port)+path)
				if status != http.StatusUnauthorized && status != http.StatusForbidden {
					t.Errorf("%s port %s %s: %d, want it refused", address, port, path, status)
				}
			}
		}
	}
}

// anonymous returns a client without credentials on the server's host.
func anonymous(cfg *rest.Config) *http.Client {
	return &http.Client{
		Timeout: 20 * time.Second,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return cfg.Dial(ctx, network, address)
			},
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func statusOf(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Errorf("get %s: %v", url, err)
		return 0
	}
	response.Body.Close()
	return response.StatusCode
}
