package integration

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// containers returns the ID, the start time and the restart count of every container in the namespace.
func (s *space) containers() map[string]string {
	s.Helper()
	list, err := s.client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	containers := map[string]string{}
	for _, pod := range list.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Running == nil {
				s.Fatalf("container %s of %s does not run: %+v", status.Name, pod.Name, status.State)
			}
			containers[pod.Name+"/"+status.Name] = fmt.Sprintf("%s since %s, restarted %d times, address %s",
				status.ContainerID, status.State.Running.StartedAt, status.RestartCount, pod.Status.PodIP)
		}
	}
	return containers
}

// TestStopLeavesPodsRunning stops kedge in order and by force. The pods must keep serving, and must
// be adopted afterwards.
func TestStopLeavesPodsRunning(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	server := newHost(t, harness.NewNetwork(t), "server-1").StartServer(t)
	server.WaitReady()
	s := newSpaceOn(t, server)
	s.webServer(2, corev1.ServiceTypeNodePort)
	s.sleeper("client")
	s.pods("app=web", 2)
	service, err := s.client.CoreV1().Services(s.namespace).Get(s.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(server.Host.Address.String(), fmt.Sprint(service.Spec.Ports[0].NodePort))
	s.eventually("the NodePort", func() error { _, err := server.Host.Get(address); return err })
	before := s.containers()

	for name, stop := range map[string]func(){"SIGTERM": server.Terminate, "SIGKILL": server.Kill9} {
		writes := s.write()
		stop()
		acknowledged := writes()
		if answer, err := server.Host.Get(address); err != nil || !strings.Contains(answer, "hostname=web-") {
			t.Errorf("after %s and without kedge the Service answers %q, %v", name, answer, err)
		}
		server.Start()
		server.WaitReady()
		s.keeps(acknowledged)
		s.pods("app=web", 2)
		s.pod("client")
		s.eventuallyIn("client", "the Service's name after "+name, func(output string) bool {
			return strings.Contains(output, "hostname=web-")
		}, "/testserver", "fetch", "http://web/")
		// A restart of anything would show after a moment.
		time.Sleep(5 * time.Second)
		if after := s.containers(); !maps.Equal(after, before) {
			t.Errorf("after %s the containers are\n%v\nand were\n%v", name, after, before)
		}
		next := "after-" + strings.ToLower(name)
		s.sleeper(next)
		s.kubectl("delete", "pod", next)
	}
}

// write creates ConfigMaps one after the other until the returned function is called. That returns
// the names of those that the API acknowledged.
func (s *space) write() func() []string {
	ctx, cancel := context.WithCancel(s.ctx)
	var acknowledged []string
	var done sync.WaitGroup
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	done.Go(func() {
		defer once()
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("write-%d-%d", time.Now().UnixNano(), i)
			requestCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err := s.client.CoreV1().ConfigMaps(s.namespace).Create(requestCtx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			cancel()
			if err == nil {
				acknowledged = append(acknowledged, name)
				once()
			}
		}
	})
	<-first
	return func() []string {
		cancel()
		done.Wait()
		return acknowledged
	}
}

// keeps checks that the named ConfigMaps exist.
func (s *space) keeps(names []string) {
	s.Helper()
	list, err := s.client.CoreV1().ConfigMaps(s.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	there := map[string]bool{}
	for _, item := range list.Items {
		there[item.Name] = true
	}
	if len(names) == 0 {
		s.Error("no write was acknowledged")
	}
	for _, name := range names {
		if !there[name] {
			s.Errorf("the write %s was acknowledged and is gone", name)
		}
	}
}

// TestFirstStartInterrupted kills kedge several times during its first start. A start that is not
// interrupted must succeed.
func TestFirstStartInterrupted(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	server := newHost(t, harness.NewNetwork(t), "server-1").StartServer(t)
	for _, after := range []time.Duration{50, 200, 400, 700, 1200, 2500, 4000} {
		time.Sleep(after * time.Millisecond)
		server.Kill9()
		server.Start()
	}
	server.WaitReady()
	newSpaceOn(t, server).sleeper("first")
}

// TestKillallRestoresTheHost compares the host before a start with the host after killall, and then
// after uninstall.
func TestKillallRestoresTheHost(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	host := newHost(t, harness.NewNetwork(t), "server-1")
	before := snapshot(t, host)
	server := host.StartServer(t)
	server.WaitReady()
	s := newSpaceOn(t, server)
	s.webServer(2, corev1.ServiceTypeNodePort)
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ports}
spec:
  volumes: [{name: work, emptyDir: {medium: Memory}}]
  containers:
  - name: main
    image: ` + testserver + `
    args: [serve, "8080"]
    ports: [{containerPort: 8080, hostPort: 8088}]
    volumeMounts: [{name: work, mountPath: /work}]
    resources: {limits: {memory: 64Mi, cpu: 100m}}
`)
	s.pods("app=web", 2)
	s.pod("ports")
	s.eventually("the host's port", func() error {
		_, err := host.Get(net.JoinHostPort(host.Address.String(), "8088"))
		return err
	})
	for what, text := range snapshot(t, host) {
		if text == before[what] {
			t.Errorf("%s are the same while pods run: the test sees nothing", what)
		}
	}

	if output, err := host.Kedge(t.Context(), "killall").CombinedOutput(); err != nil {
		t.Fatalf("killall: %v\n%s", err, output)
	}
	if code := server.WaitExit(time.Minute); code != 0 {
		t.Errorf("killall ended the server with status %d", code)
	}
	compare(t, "killall", before, host)

	// Files on disk were kept.
	server.Start()
	server.WaitReady()
	s.eventually("the host's port again", func() error {
		_, err := host.Get(net.JoinHostPort(host.Address.String(), "8088"))
		return err
	})
	if output, err := host.Kedge(t.Context(), "uninstall", "--yes").CombinedOutput(); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, output)
	}
	compare(t, "uninstall", before, host)
	for _, path := range []string{"/etc/kedge", "/var/lib/kedge/*", "/var/lib/kubelet/*", "/run/kedge"} {
		if left, _ := filepath.Glob(host.Path(path)); len(left) > 0 {
			t.Errorf("uninstall leaves %v", left)
		}
	}
}

// compare checks that the host is as before.
func compare(t *testing.T, after string, before map[string]string, host *harness.Host) {
	t.Helper()
	now := map[string]string{}
	// The kernel needs a moment to release what killed processes held.
	for range 40 {
		if now = snapshot(t, host); maps.Equal(now, before) {
			return
		}
		time.Sleep(250 * time.Millisecond)
	}
	for what, text := range before {
		if text != now[what] {
			t.Errorf("after %s the %s are\n%s\nand were\n%s", after, what, now[what], text)
		}
	}
}

// snapshot returns what kedge changes on a host, by name.
func snapshot(t *testing.T, host *harness.Host) map[string]string {
	t.Helper()
	found := map[string]string{}
	for what, command := range map[string]string{
		"interfaces":     "ls /sys/class/net",
		"routes":         "ip route; ip -6 route",
		"mounts":         "cut -d' ' -f2,3 /proc/self/mounts",
		"packet filters": "nft list ruleset",
		"processes":      "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | cut -c1-60; echo; done | grep -v -e '^sh ' -e '^tr ' -e '^cut ' -e '^grep ' -e '^sort ' -e '^$' | sort",
		"namespaces":     "ls /run/netns 2>/dev/null",
	} {
		output, err := host.Command(t.Context(), "sh", "-c", command+" || true").Output()
		if err != nil {
			t.Fatal(err)
		}
		found[what] = string(output)
	}
	var cgroups []string
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + host.Cgroup())
	for _, root := range append(roots, "/sys/fs/cgroup"+host.Cgroup()) {
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				cgroups = append(cgroups, path)
			}
			return nil
		})
	}
	slices.Sort(cgroups)
	found["cgroups"] = strings.Join(cgroups, "\n")
	return found
}
