package machines

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

// scenario is something that is shown on machines.
type scenario struct {
	name string
	// fits tells whether the scenario can be shown on the machine.
	fits   func(machine) bool
	run    func(*testing.T, *life)
	weight weight
}

// weight says when a scenario runs.
type weight int

const (
	// short is the weight of a scenario that does not run on a brief machine.
	short weight = iota
	// long is the weight of a scenario that takes minutes. It runs neither with -short nor on a brief machine.
	long
	// basic is the weight of a short scenario that also runs on brief machines.
	basic
	// needed is the weight of a basic scenario whose results later ones need.
	needed
	// special is the weight of a long scenario that a brief machine is there for. It does not run with -short.
	special
)

// runs tells whether the scenario runs on the machine.
func (s scenario) runs(m machine) bool {
	brief, quick := m.brief, testing.Short()
	switch s.weight {
	case short:
		return s.fits(m) && !brief
	case long:
		return s.fits(m) && !brief && !quick
	case special:
		return s.fits(m) && !quick
	}
	return s.fits(m)
}

// The scenarios, in their order.
var scenarios = []scenario{
	{"machine", everywhere, isAsInTable, needed},
	{"refused", withoutControllers, checkRefuses, basic},
	{"without-inet", ofDebian, refusesWithoutInet, basic},
	{"rootless", withSessions, runsRootless, long},
	{"install", withControllers, install, needed},
	{"pods", withControllers, runPods, needed},
	{"journal", withSystemd, journal, short},
	{"labels", withSELinux, labels, basic},
	{"slices", func(m machine) bool { return withSystemd(m) && withVersion2(m) }, podsInSlices, basic},
	{"memory", withControllers, limitsMemory, basic},
	{"limits", withVersion2, limits, short},
	{"measures", onLarge, measures, short},
	{"killed-for-memory", withControllers, killsForMemory, short},
	{"kedge-killed-last", withVersion2, killedLast, short},
	{"kubelet-settings", onLarge, kubeletSettings, long},
	{"profiles", withVersion2, confines, short},
	{"own-users", withWholeProc, userNamespaces, short},
	{"privileges", withControllers, privileges, short},
	{"devices", withVersion2, pluggedDevices, short},
	{"huge-pages", withHugePages, hugePages, basic},
	{"network", withNetworkd, changesNetwork, long},
	{"address", withNetworkd, changesAddress, short},
	{"name", withNetworkd, changesName, long},
	{"pair", inPairs, pairs, special},
	{"firewalls", withNeighbours, passesFirewalls, special},
	{"neighbours", withNeighbours, livesBeside, special},
	{"without-modules", ofDebian, missesFeatures, special},
	{"small", onSmall, lives, special},
	{"restart", withControllers, restart, basic},
	{"stop", withControllers, stop, short},
	{"kill", withControllers, kill, short},
	{"plan", withControllers, plan, short},
	{"upgrade", withControllers, upgrade, short},
	{"reboot", withControllers, reboot, short},
	{"power-cut", withControllers, powerCut, basic},
	{"disk", withJournal, losesDisk, long},
	{"clock", withOwnKernel, changesClock, long},
	{"uninstall", withControllers, uninstall, basic},
}

func everywhere(machine) bool           { return true }
func withControllers(m machine) bool    { return m.cgroup != "bare" }
func withoutControllers(m machine) bool { return m.cgroup == "bare" }
func withVersion2(m machine) bool       { return m.cgroup == "v2" }

// withWholeProc tells whether nothing is mounted over a file of /proc. If something is, the kernel lets no container with users of its
// own mount a /proc.
func withWholeProc(m machine) bool { return withVersion2(m) && !ofDebian(m) }

func withSystemd(m machine) bool { return !m.openrc && withControllers(m) }

// withSessions tells whether kedge runs for a user without root. That needs nftables, and a session of systemd for the user. Debian's
// policy of SELinux does not let the test start one.
func withSessions(m machine) bool {
	return onLarge(m) && withVersion2(m) && withSystemd(m) && m.security != "selinux" && !ofDebian(m)
}

func withSELinux(m machine) bool    { return m.security == "selinux" }
func inPairs(m machine) bool        { return m.pair }
func withNetworkd(m machine) bool   { return withSystemd(m) && withOwnKernel(m) }
func withJournal(m machine) bool    { return withSystemd(m) && onLarge(m) }
func withNeighbours(m machine) bool { return m.neighbours }

// withHugePages tells whether the kernel has huge pages. The kernels in user mode have none, and Debian's for armhf has none either.
func withHugePages(m machine) bool {
	_, stock := m.kind.(emulated)
	return stock && m.goArchitecture() != "arm"
}

//go:embed state.sh
var stateScript string

//go:embed pods.yaml
var pods string

// isAsInTable compares the machine with its row of the table.
func isAsInTable(t *testing.T, l *life) {
	for _, fact := range []struct{ what, command, want string }{
		{"first process", "cat /proc/1/comm", l.init().process},
		{"system", ". /etc/os-release; echo $PRETTY_NAME", l.system},
		{"kernel", "uname -r", l.kernel},
		{"architecture", "uname -m", l.architecture},
		{"cgroups", `case $(stat -fc %T /sys/fs/cgroup) in
			cgroup2fs) grep -q memory /sys/fs/cgroup/cgroup.controllers && echo v2 || echo bare ;;
			tmpfs) [ -d /sys/fs/cgroup/unified ] && echo hybrid || echo v1 ;;
			esac`, l.cgroup},
		{"security module", "grep -o -e apparmor -e selinux /sys/kernel/security/lsm 2>/dev/null || true", l.security},
	} {
		if got := l.sh(t, fact.command); !strings.HasPrefix(got, fact.want) || fact.want == "" && fact.what == "security module" && got != "" {
			t.Errorf("the %s of %s is %q, and %q in the table", fact.what, l.name, got, fact.want)
		}
	}
}

// kedge returns the executable under test, for the machine's architecture.
func (l *life) kedge(t *testing.T) []byte {
	t.Helper()
	path := os.Getenv("KEDGE_BINARY")
	if architecture := l.goArchitecture(); architecture != runtime.GOARCH {
		path = l.file(t, "kedge-"+architecture)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// checkRefuses wants check-config to say why kedge cannot run on a machine.
func checkRefuses(t *testing.T, l *life) {
	l.write(t, "/opt/kedge", 0o755, l.kedge(t))
	output, err := l.try("/opt/kedge check-config")
	if err == nil || !strings.Contains(output, "missing: cpu memory pids") {
		t.Errorf("the machine's cgroups have no controllers, and check-config does not say so: %v\n%s", err, output)
	}
}

// install installs an older version of kedge.
func install(t *testing.T, l *life) {
	program := l.kedge(t)
	l.version = releases.Version(t)
	old, oldVersion := releases.Older(t, program, l.version)
	planned, plannedVersion := releases.Numbered(t, program, l.version, 2)
	l.planned = plannedVersion
	l.write(t, "/opt/planned", 0o755, planned)
	broken, err := os.ReadFile(releases.Broken(t, "broken", l.goArchitecture(), plannedVersion))
	if err != nil {
		t.Fatal(err)
	}
	l.write(t, "/opt/planned-broken", 0o755, broken)
	l.writeRelease(t, "/opt/old", old)
	l.writeRelease(t, "/opt/new", program)
	l.writeRelease(t, "/opt/broken", releases.Script("v9.9.9+broken", "server) exit 3 ;;"))
	if l.neighbours {
		// Each of these services leaves files behind. The state before the installation has to have them. Their interfaces and
		// rules end with the reboot.
		for _, service := range neighbours {
			l.sh(t, "systemctl start "+service+" && systemctl stop "+service)
		}
		l.reboot(t)
	}
	l.sh(t, "sync; rm -rf /tmp/*")
	l.before = l.sh(t, stateScript)
	l.writeImages(t)
	if output, err := l.try("gzip -dc /opt/new/kedge-*.gz >/opt/kedge && chmod 755 /opt/kedge && /opt/kedge check-config " + l.flags() + "; status=$?; rm /opt/kedge; exit $status"); err != nil {
		t.Errorf("check-config refuses the machine: %v\n%s", err, output)
	}
	began := time.Now()
	wants(t, l.sh(t, "INSTALL_KEDGE_TIMEOUT=900 INSTALL_KEDGE_EXEC='server "+l.flags()+"' sh /opt/old/install.sh"), oldVersion+" is ready")
	l.ready(t)
	t.Logf("ready after %s", time.Since(began).Round(time.Second))
	for command, want := range l.init().installed {
		if got := l.sh(t, command); got != want {
			t.Errorf("%s: %s, want %s", command, got, want)
		}
	}
	wants(t, l.sh(t, "kedge status && kedge kubectl get namespaces"), "kedge "+oldVersion+" on node machine")
	if l.cgroup == "v2" && l.init() == systemd {
		wants(t, l.sh(t, "cat /var/lib/kedge/agent/etc/containerd/config.toml"), "SystemdCgroup = true")
	}
}

// flags are those that kedge needs on the machine.
func (m machine) flags() string {
	if ofDebian(m) {
		return "--kube-proxy-arg=proxy-mode=iptables"
	}
	return ""
}

// writeImages writes the images of the test's pods where kedge imports them.
func (l *life) writeImages(t *testing.T) {
	t.Helper()
	maker := image.Maker{Repository: l.tree, Architecture: l.goArchitecture()}
	for _, build := range []func() (string, error){maker.Busybox, maker.Testserver, maker.Plugin} {
		archive, err := build()
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		l.write(t, "/var/lib/kedge/agent/images/"+filepath.Base(archive), 0o644, data)
	}
}

// writeRelease writes a release with a program into a folder of the machine.
func (l *life) writeRelease(t *testing.T, folder string, program []byte) {
	t.Helper()
	for name, data := range releases.For(t, l.goArchitecture(), program) {
		l.write(t, filepath.Join(folder, name), 0o644, data)
	}
}

// ready waits until kedge's parts and its node are ready.
func (l *life) ready(t *testing.T) {
	t.Helper()
	l.readyAs(t, firstName)
}

// readyAs is ready for a machine with a host name.
func (l *life) readyAs(t *testing.T, name string) {
	t.Helper()
	l.nodeReady(t, name)
	l.eventually(t, l.init().state+" && kedge status --local")
}

// nodeReady waits until a node is ready.
func (l *life) nodeReady(t *testing.T, name string) {
	t.Helper()
	l.untilKubectl(t, "wait --for=condition=Ready --timeout=1m node/"+name)
}

// runPods runs a Deployment that answers by its Service's name, and a pod with a claim.
func runPods(t *testing.T, l *life) {
	l.apply(t, pods)
	l.kubectl(t, "rollout status deployment/web deployment/keeper --timeout=15m")
	l.answers(t)
	l.kubectl(t, "exec deployment/keeper -c app -- sh -c 'echo kept >/data/file; sync'")
	l.containers = l.ids(t)
	t.Logf("kedge's memory (PSS): %s", l.pss(t))
}

// pss returns how much memory kedge uses, with its share of what it uses together with other processes.
func (l *life) pss(t *testing.T) string {
	t.Helper()
	return l.sh(t, "grep ^Pss: /proc/"+l.pid(t)+"/smaps_rollup | xargs")
}

// apply applies objects.
func (l *life) apply(t *testing.T, objects string) {
	t.Helper()
	l.kubectl(t, "apply -f - <<'END'\n"+objects+"\nEND")
}

// answers waits until a pod gets an answer from the Deployment by its name, and the node has the
// volume of the claim.
func (l *life) answers(t *testing.T) {
	t.Helper()
	l.untilKubectl(t, "exec deployment/keeper -c client -- /testserver fetch http://web | grep web-")
}

// ids returns the IDs of all containers.
func (l *life) ids(t *testing.T) string {
	t.Helper()
	ids := strings.Fields(l.kubectl(t, "get pods -o jsonpath='{.items[*].status.containerStatuses[*].containerID}'"))
	slices.Sort(ids)
	return strings.Join(ids, "\n")
}

// sameContainers wants the containers to be those that ran before.
func (l *life) sameContainers(t *testing.T) {
	t.Helper()
	if now := l.ids(t); now != l.containers {
		t.Errorf("the containers of the pods are\n%s\nand were\n%s", now, l.containers)
	}
}

// podsInSlices wants pods in the slices of the kubelet, and their shims in a slice of their own: not in the cgroup
// of kedge's unit, whose limits they would share.
func podsInSlices(t *testing.T, l *life) {
	own, seen := l.sh(t, "systemctl show -p ControlGroup --value kedge"), map[string]bool{}
	// A shim that has just started another one ends meanwhile.
	for _, process := range strings.Split(l.sh(t, `grep -lx -e httpd -e containerd-shim /proc/[0-9]*/comm 2>/dev/null | while read -r comm; do name=$(cat $comm) && cgroup=$(cut -d: -f3 ${comm%comm}cgroup) && echo $name $cgroup; done 2>/dev/null`), "\n") {
		name, cgroup, _ := strings.Cut(process, " ")
		seen[name] = true
		want := "/kubepods.slice/"
		if name == "containerd-shim" {
			want = "/system.slice/system-kedge.slice/"
		}
		if !strings.HasPrefix(cgroup+"/", want) || strings.HasPrefix(cgroup+"/", own+"/") {
			t.Errorf("%s is in %s, want %s", name, cgroup, want)
		}
	}
	if !seen["httpd"] || !seen["containerd-shim"] {
		t.Errorf("pods and shims must run, and these do: %v", seen)
	}
}

// memoryLimit is the limit of the container in pods.yaml, in bytes.
const memoryLimit = "67108864"

// limitsMemory wants the kernel to have the limit of a pod, also after systemd has loaded its units anew.
func limitsMemory(t *testing.T, l *life) {
	id := l.kubectl(t, "get pod -l app=keeper -o jsonpath='{.items[0].status.containerStatuses[0].containerID}' | sed 's|.*//||'")
	find := "find /sys/fs/cgroup -path '*" + id + "*' "
	find += map[bool]string{true: "-name memory.max", false: "-name memory.limit_in_bytes"}[l.cgroup == "v2"]
	for _, before := range []string{"true", "[ ! -d /run/systemd/system ] || systemctl daemon-reload"} {
		l.sh(t, before)
		if got := l.sh(t, "cat $("+find+" | sort | head -n 1)"); got != memoryLimit {
			t.Errorf("after %s the limit of the container's memory is %q, want %s", before, got, memoryLimit)
		}
	}
}

// killsForMemory wants a container that was killed for its memory to be called so, every time.
func killsForMemory(t *testing.T, l *life) {
	names := []string{"eater-0", "eater-1", "eater-2"}
	for _, name := range names {
		l.apply(t, fmt.Sprintf(eater, name, image.BusyboxName))
	}
	for _, name := range names {
		l.untilKubectl(t, "get pod "+name+" -o jsonpath='{.status.phase}' | grep -qx Failed")
		if reason := l.kubectl(t, "get pod "+name+" -o jsonpath='{.status.containerStatuses[0].state.terminated.reason}'"); reason != "OOMKilled" {
			t.Errorf("a container that was killed for its memory is called %q, want OOMKilled: %s", reason, l.kubectl(t, "get pod "+name+" -o jsonpath='{.status}'"))
		}
		l.kubectl(t, "delete pod --now "+name)
	}
}

// eater is a pod that takes more memory than it may.
const eater = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: %s, command: [dd, if=/dev/zero, of=/dev/null, bs=256M, count=1], resources: {limits: {memory: 32Mi}}}
`

// restart restarts the service while pods run.
func restart(t *testing.T, l *life) {
	l.restartKedge(t)
	l.ready(t)
	l.answers(t)
	l.sameContainers(t)
}

// stop stops the service. Its pods go on.
func stop(t *testing.T, l *life) {
	address := l.kubectl(t, "get pods -l app=web -o jsonpath='{.items[0].status.podIP}'")
	l.sh(t, l.init().stop)
	l.stopped(t)
	answer, err := l.try("curl -sS -m 30 http://" + address + ":8080")
	l.sh(t, l.init().start)
	if err != nil || !strings.Contains(answer, "web-") {
		t.Errorf("a pod does not answer while kedge is stopped: %v: %s", err, answer)
	}
	l.ready(t)
	l.sameContainers(t)
}

// kill kills kedge. The init system starts it again.
func kill(t *testing.T, l *life) {
	before := l.pid(t)
	l.sh(t, "kill -KILL "+before)
	l.eventually(t, "now=$("+l.init().pid+") && [ $now != 0 ] && [ $now != "+before+" ] && "+l.init().state)
	l.ready(t)
	l.answers(t)
	l.sameContainers(t)
}

// plan upgrades the node by a Plan: to a broken version, which must change nothing, and to a good one.
func plan(t *testing.T, l *life) {
	before := l.sh(t, "kedge --version")
	output, err := l.try("timeout 800 kedge upgrade --file /opt/planned-broken")
	if err == nil || !strings.Contains(output, l.planned) {
		t.Errorf("a broken version was not refused: %v\n%s", err, output)
	}
	l.ready(t)
	wants(t, l.sh(t, "kedge --version"), before)
	l.sameContainers(t)
	l.sh(t, "timeout 800 kedge upgrade --file /opt/planned")
	l.ready(t)
	l.sameContainers(t)
	wants(t, l.sh(t, "kedge status"), "kedge "+l.planned+" on node machine")
}

// upgrade installs a broken version, which must change nothing, and a good one.
func upgrade(t *testing.T, l *life) {
	output, err := l.try("INSTALL_KEDGE_TIMEOUT=900 sh /opt/broken/install.sh")
	if err == nil || !strings.Contains(output, "nothing was changed: the previous kedge is installed and runs") {
		t.Errorf("a broken version was installed: %v\n%s", err, output)
	}
	l.ready(t)
	l.sameContainers(t)
	wants(t, l.sh(t, "INSTALL_KEDGE_TIMEOUT=900 sh /opt/new/install.sh"), l.version+" is ready")
	l.ready(t)
	l.sameContainers(t)
	wants(t, l.sh(t, "kedge status"), "kedge "+l.version+" on node machine")
}

// reboot reboots the machine in order.
func reboot(t *testing.T, l *life) {
	mark := l.mark(t)
	l.reboot(t)
	l.back(t, mark)
	if waited := l.sh(t, l.init().waited); waited != "" {
		t.Errorf("the reboot has waited for processes that do not end by themselves:\n%s", waited)
	}
}

// powerCut ends the machine at once.
func powerCut(t *testing.T, l *life) {
	mark := l.mark(t)
	l.cut(t)
	l.start(t)
	l.back(t, mark)
}

// mark makes a ConfigMap and returns its name. The API has acknowledged it, so it must be there after the boot.
func (l *life) mark(t *testing.T) string {
	t.Helper()
	return l.kubectl(t, "create configmap mark-$(date +%s) -o jsonpath='{.metadata.name}'")
}

// back waits until everything is back after a boot.
func (l *life) back(t *testing.T, mark string) {
	t.Helper()
	began := time.Now()
	l.ready(t)
	t.Logf("ready %s after the boot", time.Since(began).Round(time.Second))
	l.kubectl(t, "get configmap "+mark)
	l.kubectl(t, "rollout status deployment/web deployment/keeper --timeout=15m")
	l.answers(t)
	l.sameVolume(t)
	l.noErrors(t, "-b")
}

// sameVolume wants the volume to have what was written into it.
func (l *life) sameVolume(t *testing.T) {
	t.Helper()
	if got := l.kubectl(t, "exec deployment/keeper -c app -- cat /data/file"); got != "kept" {
		t.Errorf("the volume has %q, want what was written", got)
	}
}

// uninstall removes kedge. The machine must be as before. The kernel's settings may stay until the
// next boot.
func uninstall(t *testing.T, l *life) {
	wants(t, l.sh(t, "kedge uninstall --yes 2>&1"), "stay until the next boot")
	if withSELinux(l.machine) {
		l.sh(t, removeModule)
	}
	l.wantAsBefore(t, func(state string) string {
		begin, end := strings.Index(state, "# kernel settings"), strings.Index(state, "# files")
		return state[:begin] + state[end:]
	})
	l.reboot(t)
	l.wantAsBefore(t, func(state string) string { return state })
}

// wantAsBefore waits until a part of the machine's state is what it was before kedge was installed. part
// cuts this part out of the whole state.
func (l *life) wantAsBefore(t *testing.T, part func(state string) string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "the machine to be as it was", func() error {
		after, err := l.try(stateScript)
		if err != nil {
			return err
		}
		if changed := harness.Difference(part(l.before), part(strings.TrimSpace(after))); changed != "" {
			return fmt.Errorf("uninstall has left:\n%s", changed)
		}
		return nil
	})
}

// wants checks that output has text.
func wants(t *testing.T, output, text string) {
	t.Helper()
	if !strings.Contains(output, text) {
		t.Errorf("want %q in\n%s", text, output)
	}
}
