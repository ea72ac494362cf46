// Package install uses install.sh to install kedge on hosts, upgrade it, recover from bad upgrades, and
// remove it, on a bare Debian and on a copy of this machine. Programs in testdata replace systemd and
// OpenRC, because neither is the first process of a test's host.
package install

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// system is a host with a service manager.
type system struct {
	host *harness.Host
	// folders are the host's own folders, except /run and /root, where kubectl caches.
	folders string
	// marker is a file that shows that the service manager runs.
	marker, unit string
	// flags are the flags of the service, and data is the data directory that follows from them.
	flags, data string
	// stop stops the service, if uninstall must find it stopped. Empty otherwise.
	stop, uninstall string
}

func TestDebian(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	_, root := debian(t)
	lives(t, func(n *harness.Network) system {
		return system{
			host: n.NewHostFrom(t, "debian", root), folders: "/boot /etc /home /opt /srv /usr /var",
			marker: "/run/systemd/system/none", unit: "/etc/systemd/system/kedge.service",
			data:      "/var/lib/kedge",
			uninstall: "sh /opt/new/install.sh uninstall",
		}
	})
}

func TestThisMachine(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	lives(t, func(n *harness.Network) system {
		return system{
			host: n.NewHost(t, "machine"), folders: "/etc /opt /usr/libexec /usr/local /var/lib /var/log",
			marker: "/run/openrc/softlevel", unit: "/etc/init.d/kedge",
			// Commands find the data directory by themselves.
			flags: "--data-dir=/var/lib/kedge/own", data: "/var/lib/kedge/own",
			stop:      "rc-service kedge stop",
			uninstall: "/usr/local/bin/kedge uninstall --yes",
		}
	})
}

// lives goes through the whole life of an installation.
func lives(t *testing.T, newSystem func(*harness.Network) system) {
	program, err := os.ReadFile(os.Getenv("KEDGE_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	version := releases.Version(t)
	old, oldVersion := releases.Older(t, program, version)
	network := harness.NewNetwork(t)
	s, client := newSystem(network), network.NewHost(t, "client")
	host := s.host
	t.Cleanup(func() {
		if t.Failed() {
			output, _ := host.Command(context.Background(), "/bin/sh", "-c", `cat /run/fake/calls; tail -n 100 /run/fake/log
				kedge kubectl get nodes,pods,endpointslices -o yaml --show-managed-fields; kedge kubectl get events -A --sort-by=.lastTimestamp`).CombinedOutput()
			t.Logf("the service manager's calls, kedge's log, and its objects:\n%s", output)
		}
	})
	s.addManager(t)
	newRelease(t, old).write(t, host, "/opt/old")
	good := newRelease(t, program)
	good.write(t, host, "/opt/new")
	good.damaged().write(t, host, "/opt/damaged")
	newRelease(t, releases.Script("v9.9.9+exits", "server) exit 3 ;;")).write(t, host, "/opt/exits")
	newRelease(t, releases.Script("v9.9.9+hangs", "server) exec sleep 1005 ;;")).write(t, host, "/opt/hangs")
	before := s.snapshot(t)
	cluster.Preload(t, host)
	if s.data != "/var/lib/kedge" {
		sh(t, host, "mkdir "+s.data+" && mv /var/lib/kedge/agent "+s.data)
	}

	t.Log("install")
	output := sh(t, host, "KEDGE_NODE_NAME=one INSTALL_KEDGE_EXEC='server --kubelet-arg=cgroup-root="+host.Cgroup()+" "+s.flags+"' sh /opt/old/install.sh")
	wants(t, output, oldVersion+" is ready")
	wants(t, sh(t, host, "kedge kubectl get nodes"), "one ")
	verifyUnit(t, host, s.unit)
	sh(t, host, "kedge kubectl apply -f - <<END"+web+"END\nkedge kubectl wait --for=condition=Ready --timeout=180s pod/web")
	container := s.container(t)
	requests := startRequests(t, client, "http://"+net.JoinHostPort(host.Address.String(), "30080"))

	s.settle(t)

	t.Log("a damaged upgrade")
	files := s.installed(t)
	refused(t, host, "sh /opt/damaged/install.sh", "does not match SHA256SUMS, so nothing was changed")
	s.wantUnchanged(t, oldVersion, files, container)

	t.Log("upgrade")
	wants(t, sh(t, host, "sh /opt/new/install.sh"), version+" is ready")
	wants(t, sh(t, host, "kedge status"), "kedge "+version+" on node one")
	s.wantContainer(t, container)

	requests.want(t)

	t.Log("upgrade again: there is nothing to do")
	wants(t, sh(t, host, "sh /opt/new/install.sh"), "there was nothing to do")
	s.wantContainer(t, container)

	files = s.installed(t)
	for _, bad := range []string{
		// The restarts show that it does not work, long before the time is over.
		"INSTALL_KEDGE_TIMEOUT=7200 sh /opt/exits/install.sh",
		"INSTALL_KEDGE_TIMEOUT=20 sh /opt/hangs/install.sh --disable=local-storage",
	} {
		t.Log(bad)
		refused(t, host, bad, "nothing was changed: the previous kedge is installed and runs")
		s.wantUnchanged(t, version, files, container)
		requests.want(t)
	}
	requests.end()

	if s.stop != "" {
		t.Log("commands while kedge does not run")
		sh(t, host, "kedge snapshot save")
		sh(t, host, s.stop)
		configuration := sh(t, host, "kedge config print")
		wants(t, configuration, "data-dir: "+s.data+" # --data-dir\n")
		wants(t, configuration, "node-name: one # $KEDGE_NODE_NAME\n")
		wants(t, sh(t, host, "kedge certificate check"), s.data+"/server/tls/")
		saved := strings.Fields(sh(t, host, "kedge snapshot list -o json | grep -o 'on-demand[^/\"]*' | head -n 1"))[0]
		wants(t, sh(t, host, "kedge snapshot restore "+saved), s.data+"/server/replaced-")
	}

	t.Log("uninstall")
	// The kubelet has left a file for logind, and systemd has a slice for pods.
	host.WriteFile("/etc/systemd/logind.conf.d/99-kubelet.conf", "")
	host.WriteFile("/run/fake/kubepods.slice", "")
	sh(t, host, s.uninstall)
	if systemd := strings.Contains(s.marker, "systemd"); systemd {
		sh(t, host, "! [ -e /run/fake/kubepods.slice ]")
	}
	harness.Eventually(t, time.Minute, "the host to be as it was", func() error {
		for what, text := range s.snapshot(t) {
			if changed := harness.Difference(before[what], text); changed != "" {
				return fmt.Errorf("%s changed:\n%s", what, changed)
			}
		}
		return nil
	})
}

// web is a pod that answers on port 30080 of its node.
const web = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: main
    image: ` + image.TestserverName + `
    args: [serve, "8080"]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
`

// addManager gives the host a service manager.
func (s system) addManager(t *testing.T) {
	t.Helper()
	programs, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range programs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := "/opt/fake/" + filepath.Base(path)
		s.host.WriteFile(at, string(text))
		if err := os.Chmod(s.host.Path(at), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.host.Setenv("PATH", "/opt/fake:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	s.host.WriteFile(s.marker, "")
	s.host.WriteFile("/run/fake/calls", "")
	// On a host with such a manager the folder of its units exists.
	sh(t, s.host, "mkdir -p "+filepath.Dir(s.unit))
}

// settle waits until the pod's container is older than ten seconds. A kubelet that starts earlier
// counts the pod as not ready until it has probed it (pkg/kubelet/prober/prober_manager.go,
// kubeletRestartGracePeriod).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/prober/prober_manager.go kubeletRestartGracePeriod manager.setReadyStateOnKubeletRestart
func (s system) settle(t *testing.T) {
	t.Helper()
	began, err := time.Parse(time.RFC3339, sh(t, s.host, "kedge kubectl get pod web -o jsonpath='{.status.containerStatuses[*].state.running.startedAt}'"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(began.Add(11 * time.Second)))
}

// container returns the ID of the pod's container.
func (s system) container(t *testing.T) string {
	t.Helper()
	return sh(t, s.host, "kedge kubectl get pod web -o jsonpath='{.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}'")
}

// wantUnchanged checks that kedge runs as before a failed upgrade.
func (s system) wantUnchanged(t *testing.T, version, files, container string) {
	t.Helper()
	wants(t, sh(t, s.host, "kedge status"), "kedge "+version+" on node one")
	if changed := harness.Difference(files, s.installed(t)); changed != "" {
		t.Errorf("files changed:\n%s", changed)
	}
	s.wantContainer(t, container)
}

func (s system) wantContainer(t *testing.T, before string) {
	t.Helper()
	if after := s.container(t); after != before {
		t.Errorf("the pod's container is %s, and was %s", after, before)
	}
}

// snapshot describes everything that installing and running kedge changes.
func (s system) snapshot(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"files":          files(t, s.host, s.folders),
		"run":            sh(t, s.host, "find /run -not -path '/run/fake*' -not -path '/run/mount*'"), // the latter is of mount(8)
		"interfaces":     sh(t, s.host, "ls /sys/class/net"),
		"mounts":         sh(t, s.host, "cut -d' ' -f2,3 /proc/self/mounts"),
		"packet filters": nftRules(t, s.host),
	}
}

// installed lists the files that install.sh makes.
func (s system) installed(t *testing.T) string { return files(t, s.host, "/etc /usr/local") }

// files lists all files below folders, with their modes, sizes and links.
func files(t *testing.T, host *harness.Host, folders string) string {
	t.Helper()
	return sh(t, host, "find "+folders+` -type d -printf '%p %M\n' -o -printf '%p %M %s %l\n' | sort`)
}

// nftRules lists the rules in the host's network, with the machine's own nft.
func nftRules(t *testing.T, host *harness.Host) string {
	t.Helper()
	harness.Need(t, "nftables")
	output, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", host.FirstProcess()), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v\n%s", err, output)
	}
	return string(output)
}

// debian returns the source tree, and the folder of a bare Debian.
func debian(t *testing.T) (repository, root string) {
	t.Helper()
	harness.Need(t, "debootstrap")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	if root, err = image.DebianRoot(repository); err != nil {
		t.Fatal(err)
	}
	return repository, root
}

// verifyUnit lets systemd check a unit on the machine, where kedge has another path.
func verifyUnit(t *testing.T, host *harness.Host, path string) {
	t.Helper()
	if filepath.Ext(path) != ".service" {
		return
	}
	harness.Need(t, "systemd")
	text, err := os.ReadFile(host.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "kedge.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/kedge", os.Getenv("KEDGE_BINARY"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("systemd-analyze: %v\n%s%s", err, output, text)
	}
}

// requests sends requests one after the other, each on a new connection.
type requests struct {
	quit chan struct{}
	done sync.WaitGroup

	mutex        sync.Mutex
	made, failed int
	// fault is the first failure, with its time.
	fault error
	at    time.Time
}

func startRequests(t *testing.T, from *harness.Host, url string) *requests {
	t.Helper()
	r := &requests{quit: make(chan struct{})}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}}
	ask := func() error {
		response, err := client.Get(url)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("answer %s", response.Status)
		}
		return nil
	}
	harness.Eventually(t, time.Minute, "the pod to answer", ask)
	r.done.Go(func() {
		for {
			select {
			case <-r.quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
			r.note(ask())
		}
	})
	t.Cleanup(r.end)
	return r
}

func (r *requests) note(err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.made++
	if err == nil {
		return
	}
	if r.failed++; r.failed == 1 {
		r.fault, r.at = err, time.Now()
	}
}

func (r *requests) end() {
	select {
	case <-r.quit:
	default:
		close(r.quit)
	}
	r.done.Wait()
}

// want checks that no request has failed so far.
func (r *requests) want(t *testing.T) {
	t.Helper()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	t.Logf("%d requests, %d of them failed", r.made, r.failed)
	if r.failed > 0 {
		t.Fatalf("requests failed, the first at %s with: %v", r.at.Format(time.TimeOnly), r.fault)
	}
}
