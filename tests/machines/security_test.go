package machines

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// confinement is what a pod asks for, and what its process must say of itself.
var confinement = []struct{ name, spec, want string }{
	{"seccomp-default", "securityContext: {seccompProfile: {type: RuntimeDefault}}", "Seccomp:\t2"},
	{"seccomp-unconfined", "securityContext: {seccompProfile: {type: Unconfined}}", "Seccomp:\t0"},
	{"seccomp-localhost", "securityContext: {seccompProfile: {type: Localhost, localhostProfile: machine.json}}", "Seccomp:\t2"},
}

// underAppArmor is the same for a machine with AppArmor.
var underAppArmor = []struct{ name, spec, want string }{
	{"apparmor-unsaid", "", "cri-containerd.apparmor.d (enforce)"},
	{"apparmor-default", "securityContext: {appArmorProfile: {type: RuntimeDefault}}", "cri-containerd.apparmor.d (enforce)"},
	{"apparmor-unconfined", "securityContext: {appArmorProfile: {type: Unconfined}}", "unconfined"},
	{"apparmor-localhost", "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: machine}}", "machine (enforce)"},
}

// profiles makes a profile of seccomp that refuses mkdir, and one of AppArmor that refuses to write below /tmp.
const profiles = `
mkdir -p /var/lib/kubelet/seccomp
echo '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}' >/var/lib/kubelet/seccomp/machine.json
[ ! -d /sys/kernel/security/apparmor ] || apparmor_parser -r <<'END'
profile machine flags=(attach_disconnected) { file, network, capability, deny /tmp/** w, }
END
`

// confines wants the profiles of pods to be those of their processes, and to hold.
func confines(t *testing.T, l *life) {
	l.sh(t, profiles)
	defer l.sh(t, "rm -r /var/lib/kubelet/seccomp; [ ! -d /sys/kernel/security/apparmor ] || echo 'profile machine {}' | apparmor_parser -R")
	rows := confinement
	if l.security == "apparmor" {
		rows = append(rows[:len(rows):len(rows)], underAppArmor...)
	}
	var pods []once
	for _, row := range rows {
		pod := once{name: row.name, spec: row.spec, script: "grep Seccomp: /proc/self/status; cat /proc/self/attr/current 2>/dev/null; mkdir /made; mkdir -p /tmp; touch /tmp/made; true"}
		pod.start(t, l)
		pods = append(pods, pod)
	}
	for i, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			output := pods[i].result(t, l)
			wants(t, output, row.want)
			if refused := strings.Contains(output, "can't create directory '/made'"); refused != (row.name == "seccomp-localhost") {
				t.Errorf("mkdir is refused: %v\n%s", refused, output)
			}
			if refused := strings.Contains(output, "touch: /tmp/made: Permission denied"); refused != (row.name == "apparmor-localhost") {
				t.Errorf("touch is refused: %v\n%s", refused, output)
			}
		})
	}
	t.Run("unknown-profile", func(t *testing.T) {
		pod := once{name: "unknown-profile", spec: "securityContext: {seccompProfile: {type: Localhost, localhostProfile: absent.json}}", script: "true"}
		pod.start(t, l)
		defer pod.remove(t, l)
		l.untilKubectl(t, "describe pod unknown-profile | grep absent.json")
	})
	if l.security == "apparmor" {
		t.Run("without-the-package", func(t *testing.T) { runsWithoutParser(t, l) })
	}
}

// runsWithoutParser takes away the program of the package apparmor, without which no profile can be loaded. Pods run without one. A
// pod that asks for one says why it does not, and check-config says what to do.
func runsWithoutParser(t *testing.T, l *life) {
	const parser = "/usr/sbin/apparmor_parser"
	l.sh(t, "mv "+parser+" "+parser+".away")
	l.restartKedge(t)
	defer func() {
		l.sh(t, "mv "+parser+".away "+parser)
		l.restartKedge(t)
		l.ready(t)
	}()
	l.ready(t)
	wants(t, once{name: "apparmor-absent", script: "cat /proc/self/attr/current"}.output(t, l), "unconfined")
	asks := once{name: "apparmor-asked", spec: "securityContext: {appArmorProfile: {type: RuntimeDefault}}", script: "true"}
	asks.start(t, l)
	defer asks.remove(t, l)
	l.untilKubectl(t, "describe pod apparmor-asked | grep 'apparmor is not supported'")
	output, _ := l.try("kedge check-config")
	wants(t, output, "Install the package apparmor")
}

// labelled is a pod with volumes of three kinds and a folder of the host.
var labelled = once{
	name: "labelled",
	spec: "volumes: [{name: scratch, emptyDir: {}}, {name: settings, configMap: {name: kube-root-ca.crt}}, " +
		"{name: kept, persistentVolumeClaim: {claimName: own-users}}, {name: host, hostPath: {path: /etc}}]",
	container: "volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}, {name: kept, mountPath: /kept}, {name: host, mountPath: /host}]",
	script:    "cat /proc/self/attr/current; echo; touch /scratch/file /kept/file /own && head -n 1 /settings/ca.crt && ! cat /host/shadow",
}

// removeModule removes the module of docs/selinux.md, if labels has installed it. kedge leaves it.
const removeModule = "rm -f /root/kedge.cil; semodule -r kedge 2>&1 | cat; rmdir /var/lib/selinux/default/active/modules/400 2>/dev/null || true"

// labels turns on labels for containers. Debian 12's policy does not have them, and kedge says so. Debian 13's policy needs the
// module of docs/selinux.md, and from here on all pods of the machine have labels.
func labels(t *testing.T, l *life) {
	l.sh(t, "echo 'selinux: true' >>/etc/kedge/config.yaml")
	refused := func(why string) {
		t.Helper()
		if _, err := l.try(l.init().restart); err == nil {
			t.Errorf("kedge starts, although the policy %s", why)
		}
		l.eventually(t, "journalctl -b -u kedge -o cat --no-pager | grep -F 'the policy of SELinux "+why+"'")
	}
	if l.suite == "bookworm" {
		refused("does not have the label system_u:system_r:container_t:s0:c")
		l.sh(t, "sed -i '/^selinux:/d' /etc/kedge/config.yaml")
		l.restartKedge(t)
		l.ready(t)
		return
	}
	refused("does not let kedge (system_u:system_r:initrc_t:s0) start containers (system_u:system_r:container_t:s0:c")
	page, err := os.ReadFile(filepath.Join(l.tree, "docs/selinux.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(string(page))
	if block == nil {
		t.Fatal("docs/selinux.md has no commands")
	}
	// The program cannot write to the connection of the test, and the list gives its commands an indent.
	l.sh(t, "sudo() { \"$@\" 2>&1 | cat; }; cd /root\n"+strings.ReplaceAll(block[1], "   ", ""))
	l.restartKedge(t)
	l.ready(t)
	l.kubectl(t, "delete pods --all")
	l.kubectl(t, "rollout status deployment/web deployment/keeper --timeout=15m")
	l.answers(t)
	l.containers = l.ids(t)
	// The volume has the labels of the new pod, so that it can read what the one before has written.
	wants(t, l.kubectl(t, "exec deployment/keeper -c app -- cat /data/file"), "kept")

	const domain = "system_u:system_r:container_t:s0:c"
	l.apply(t, ownClaim)
	defer l.kubectl(t, "delete persistentvolumeclaim own-users")
	output := labelled.output(t, l)
	wants(t, output, domain)
	wants(t, output, "-----BEGIN CERTIFICATE-----")
	wants(t, output, "can't open '/host/shadow': Permission denied")
	if again := (once{name: "labelled", script: "cat /proc/self/attr/current"}).output(t, l); !strings.HasPrefix(again, domain) || strings.HasPrefix(output, again) {
		t.Errorf("two pods have the labels %q and %q, want categories of their own", again, output)
	}
	wants(t, once{name: "level", spec: `securityContext: {seLinuxOptions: {level: "s0:c1,c2"}}`, script: "cat /proc/self/attr/current"}.output(t, l), domain+"1,c2")
	wants(t, once{name: "privileged", container: "securityContext: {privileged: true}", script: "cat /proc/self/attr/current"}.output(t, l), "initrc_t")
}

// ownClaim is the claim of the pod of userNamespaces.
const ownClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: own-users}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 32Mi}}
`

// userNamespaces runs a pod whose root is nobody on the machine, with volumes of three kinds. Their files
// belong to its root.
func userNamespaces(t *testing.T, l *life) {
	l.apply(t, ownClaim)
	defer l.kubectl(t, "delete persistentvolumeclaim own-users")
	output := once{
		name: "own-users",
		spec: "hostUsers: false\n  volumes: [{name: scratch, emptyDir: {}}, {name: settings, configMap: {name: kube-root-ca.crt}}, " +
			"{name: kept, persistentVolumeClaim: {claimName: own-users}}]",
		container: "volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}, {name: kept, mountPath: /kept}]",
		script:    "cat /proc/self/uid_map; id -u; touch /scratch/file /kept/file && stat -c %u /scratch/file /settings/ca.crt /kept/file",
	}.output(t, l)
	fields := strings.Fields(output)
	if len(fields) != 7 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" || strings.Join(fields[3:], " ") != "0 0 0 0" {
		t.Errorf("a pod with users of its own says:\n%s\nwant a map of 65536 users that begins at 0, and files of user 0", output)
	}
}

// privileges runs three pods. A privileged pod must be able to mount. A pod with a safe sysctl must have its value. The
// node must refuse a pod with an unsafe sysctl.
func privileges(t *testing.T, l *life) {
	wants(t, once{name: "privileged", container: "securityContext: {privileged: true}",
		script: "mkdir /m && mount -t tmpfs none /m && echo mounted"}.output(t, l), "mounted")
	wants(t, once{name: "sysctl", spec: `securityContext: {sysctls: [{name: net.ipv4.ip_local_port_range, value: "20000 30000"}]}`,
		script: "cat /proc/sys/net/ipv4/ip_local_port_range"}.output(t, l), "20000\t30000")
	unsafe := once{name: "unsafe-sysctl", spec: `securityContext: {sysctls: [{name: kernel.msgmax, value: "65536"}]}`, script: "true"}
	unsafe.start(t, l)
	defer unsafe.remove(t, l)
	if phase := unsafe.ended(t, l); phase != "Failed" || unsafe.get(t, l, ".reason") != "SysctlForbidden" {
		t.Errorf("a pod with an unsafe sysctl is %s: %s", phase, unsafe.get(t, l, ""))
	}
}

// noErrors wants kedge to have logged no error in a part of the journal.
func (l *life) noErrors(t *testing.T, part string) {
	t.Helper()
	if !withSystemd(l.machine) {
		return
	}
	if errors := l.sh(t, "journalctl "+part+" -u kedge -p err -o cat --no-pager _TRANSPORT=stdout"); errors != "" {
		t.Errorf("kedge has logged errors:\n%s", errors)
	}
}

// journal wants the unit's status to say that kedge is ready, and the journal to have the priorities of
// kedge's lines, none of them an error.
func journal(t *testing.T, l *life) {
	wants(t, l.sh(t, "systemctl show -p StatusText --value kedge"), "ready")
	l.noErrors(t, "-b")
	counts := l.sh(t, `journalctl -b -u kedge _TRANSPORT=stdout -o json --output-fields=PRIORITY --no-pager | grep -o '"PRIORITY":"[0-9]"' | sort | uniq -c`)
	wants(t, counts, `"PRIORITY":"6"`)
	if mixed := l.sh(t, "journalctl -b -u kedge _TRANSPORT=stdout PRIORITY=6 -o cat --no-pager | grep -E '^level=(warning|error)' || true"); mixed != "" {
		t.Errorf("lines of a higher level have the priority of information:\n%s", mixed)
	}
}
