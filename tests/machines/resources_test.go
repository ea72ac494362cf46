package machines

import (
	"maps"
	"strconv"
	"strings"
	"testing"
)

// limited is what the kernel must say of a container with the resources of limits, for each file of its
// cgroup of version 2.
var limited = map[string]string{
	"cpu.max":         "20000 100000",
	"memory.max":      "67108864",
	"memory.high":     "max", // memory QoS is an alpha feature of the kubelet
	"memory.swap.max": "0",
	"pids.max":        "max", // the pod's cgroup has the node's limit. systemd has one for each of its units
}

// limits wants the kernel to have the limits of a container.
func limits(t *testing.T, l *life) {
	var files []string
	for name := range limited {
		files = append(files, name)
	}
	output := once{
		name:      "limits",
		container: "resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}",
		script:    "cd /sys/fs/cgroup; for file in " + strings.Join(files, " ") + "; do [ ! -e $file ] || echo $file: $(cat $file); done",
	}.output(t, l)
	want := maps.Clone(limited)
	if l.init() == systemd {
		want["pids.max"] = l.sh(t, "systemctl show -p DefaultTasksMax --value")
	}
	for _, line := range strings.Split(output, "\n") {
		if name, got, _ := strings.Cut(line, ": "); got != want[name] {
			t.Errorf("%s of the container is %q, want %q", name, got, want[name])
		}
	}
	wants(t, output, "memory.max: ")
}

// eaten is how much memory the pod of measures holds, in MiB.
const eaten = 64

// measures compares what the kubelet says of a pod with what the pod uses, and wants PSI metrics where the
// kernel has them.
func measures(t *testing.T, l *life) {
	pod := once{name: "measured", script: "dd if=/dev/zero of=/dev/shm/eaten bs=1M count=" + strconv.Itoa(eaten) + "; sleep 3600",
		spec: "terminationGracePeriodSeconds: 1"}
	pod.start(t, l)
	defer pod.remove(t, l)
	l.untilKubectl(t, "top pod measured --no-headers | grep -E ' ("+strconv.Itoa(eaten)+"|6[5-9]|7[0-9])Mi'")
	l.kubectl(t, "top node machine --no-headers | grep -E ' [1-9][0-9]*Mi '")
	if _, err := l.try("test -e /proc/pressure/memory"); err == nil {
		l.untilKubectl(t, `get --raw /api/v1/nodes/machine/proxy/metrics/cadvisor | grep '^container_pressure_memory_waiting_seconds_total{.*pod="measured"'`)
	}
}

// kubelet is a configuration of the kubelet with which a node evicts soon and gives pods swap.
const kubelet = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podPidsLimit: 64
memorySwap: {swapBehavior: LimitedSwap}
evictionPressureTransitionPeriod: 10s
evictionHard: {memory.available: 30%, nodefs.available: 5%}
`

// kubeletSettings gives the kubelet a configuration that its node needs more than the default for: swap,
// processes and eviction are shown with it.
func kubeletSettings(t *testing.T, l *life) {
	l.sh(t, `mkdir -p /etc/kedge/kubelet && cat >/etc/kedge/kubelet/test.conf <<'END'`+kubelet+`END
		cp /etc/kedge/config.yaml /etc/kedge/config.yaml.before 2>/dev/null
		printf 'kubelet-arg: [config-dir=/etc/kedge/kubelet]\n' >>/etc/kedge/config.yaml
		fallocate -l 256M /swap && chmod 600 /swap && mkswap /swap && swapon /swap`)
	defer func() {
		l.sh(t, `swapoff /swap; rm -r /swap /etc/kedge/kubelet /etc/kedge/config.yaml
			[ ! -e /etc/kedge/config.yaml.before ] || mv /etc/kedge/config.yaml.before /etc/kedge/config.yaml`)
		l.restartKedge(t)
		l.ready(t)
		// The kubelet evicts other pods too while the memory and the disk of the first one are not free yet.
		l.replaceEvicted(t)
	}()
	l.restartKedge(t)
	l.ready(t)
	t.Run("processes", func(t *testing.T) {
		output := once{name: "forks", script: "(i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i + 1)); done) 2>&1; true"}.output(t, l)
		wants(t, output, "can't fork")
	})
	t.Run("swap", func(t *testing.T) {
		output := once{name: "swaps", script: "cat /sys/fs/cgroup/memory.swap.max",
			container: "resources: {requests: {memory: 512Mi}, limits: {memory: 1Gi}}"}.output(t, l)
		if size, err := strconv.Atoi(output); err != nil || size == 0 {
			t.Errorf("the container may use %q bytes of swap, want its share of it", output)
		}
	})
	t.Run("evicted-for-memory", func(t *testing.T) {
		evicts(t, l, once{name: "memory-eater", spec: "volumes: [{name: memory, emptyDir: {medium: Memory}}]",
			container: "volumeMounts: [{name: memory, mountPath: /memory}]",
			script:    "dd if=/dev/zero of=/memory/file bs=1M; sleep 3600"}, "MemoryPressure", "memory")
	})
	t.Run("evicted-for-disk", func(t *testing.T) {
		evicts(t, l, once{name: "disk-eater", spec: "volumes: [{name: disk, emptyDir: {}}]",
			container: "volumeMounts: [{name: disk, mountPath: /disk}]",
			script:    "i=0; while fallocate -l 64M /disk/$i; do i=$((i + 1)); done; sleep 3600"}, "DiskPressure", "ephemeral-storage")
	})
}

// evicts wants the node to evict a pod for what it has too little of, to say so, and to recover.
func evicts(t *testing.T, l *life, pod once, condition, resource string) {
	t.Helper()
	pod.start(t, l)
	defer pod.remove(t, l)
	pod.ended(t, l)
	if reason := pod.get(t, l, ".reason"); reason != "Evicted" {
		t.Errorf("the pod failed for %q, want Evicted: %s", reason, pod.get(t, l, ""))
	}
	wants(t, pod.get(t, l, ".message"), resource)
	l.untilKubectl(t, "wait --for=condition="+condition+"=false --timeout=1m node/machine")
	l.answers(t)
}

// eatsAll holds more memory than a machine has. The kernel fills it, which takes a kernel in user mode less time than
// a program's own writes.
const eatsAll = "for i in 1 2 3 4; do dd if=/dev/zero bs=1G count=1 | sleep 600 & done; wait"

// killedLast wants the kernel to kill a pod, and not kedge, if the machine has no memory left.
func killedLast(t *testing.T, l *life) {
	before := l.pid(t)
	pod := once{name: "everything-eater", script: eatsAll}
	pod.start(t, l)
	if phase := pod.ended(t, l); phase != "Failed" {
		t.Errorf("the pod with all memory of the machine is %s", phase)
	}
	pod.remove(t, l)
	if after := l.pid(t); after != before {
		t.Errorf("kedge was process %s and is %s", before, after)
	}
	l.ready(t)
	// If the memory lasts until the kubelet looks at it, the kubelet evicts another pod first.
	if evicted := l.kubectl(t, "get pods --field-selector=status.phase=Failed -o name"); evicted == "" {
		l.sameContainers(t)
	}
	l.replaceEvicted(t)
}

// replaceEvicted removes evicted pods, and waits for those in their place.
func (l *life) replaceEvicted(t *testing.T) {
	t.Helper()
	l.kubectl(t, "delete pods --field-selector=status.phase=Failed")
	l.kubectl(t, "rollout status deployment/web deployment/keeper --timeout=15m")
	l.answers(t)
	l.containers = l.ids(t)
}
