package variants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestRuntimes uses the runtimes that kedge finds on the host, and those that drop-ins of
// containerd's configuration add, in the present format and in that of containerd 1. One of them takes long to
// delete a container. It also tries the snapshotter that copies.
func TestRuntimes(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	for _, runtime := range []string{"crun", "own", "old"} {
		writeProgram(t, host, "/opt/runtimes/"+runtime,
			"#!/bin/sh\necho "+runtime+" \"$@\" >>/run/runtimes.log\nexec /run/kedge/bin/runc \"$@\"\n")
	}
	// containerd waits for 10 seconds.
	writeProgram(t, host, "/opt/runtimes/slow", "#!/bin/sh\ncase \" $* \" in *\" delete \"*) sleep 15 ;; esac\nexec /run/kedge/bin/runc \"$@\"\n")
	host.Setenv("PATH", "/opt/runtimes:"+os.Getenv("PATH"))
	host.WriteFile("/etc/kedge/containerd/50-own.toml", `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.own]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.own.options]
    BinaryName = '/opt/runtimes/own'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.slow]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.slow.options]
    BinaryName = '/opt/runtimes/slow'
`)
	host.WriteFile("/var/lib/kedge/agent/etc/containerd/config-v3.toml.d/60-old.toml", `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.old]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.old.options]
    BinaryName = "/opt/runtimes/old"
`)
	c := start(t, host, "--snapshotter=native")
	c.works()

	// kedge knows crun, so its RuntimeClass exists. The test makes the others.
	c.apply(`{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: own}, handler: own}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: old}, handler: old}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: slow}, handler: slow}
`)
	for _, runtime := range []string{"crun", "own", "old"} {
		c.sleeper("by-"+runtime, "runtimeClassName: "+runtime+",")
		c.answers("by-"+runtime, "http://web/")
		if log := run(t, host, "cat", "/run/runtimes.log"); !strings.Contains(log, "\n"+runtime+" ") && !strings.HasPrefix(log, runtime+" ") {
			t.Errorf("%s did not run the pod:\n%s", runtime, log)
		}
	}
	c.kubectl("run", "root", "--image="+busybox, "--restart=Never", "--command", "--", "sleep", "1000")
	c.pod("root")
	if mounts := c.in("root", "cat", "/proc/mounts"); strings.Contains(mounts, "overlay / ") || !strings.Contains(mounts, " / ") {
		t.Errorf("with --snapshotter=native the mounts of a pod are:\n%s", mounts)
	}

	c.kubectl("run", "brief", "--image="+busybox, "--restart=Never", `--overrides={"spec":{"runtimeClassName":"slow"}}`, "--command", "--", "true")
	c.eventually("the end of a container that takes long to be deleted", func() error {
		if phase := c.kubectl("get", "pod", "brief", "-o", "jsonpath={.status.phase}"); phase != "Succeeded" {
			return fmt.Errorf("the pod is %s", phase)
		}
		return nil
	})

	// The pod reports a runtime that does not exist.
	c.kubectl("run", "nowhere", "--image="+testserver, `--overrides={"spec":{"runtimeClassName":"kata"}}`)
	c.eventually("the event of a runtime that is not installed", func() error {
		events := c.kubectl("get", "events", "--field-selector=involvedObject.name=nowhere")
		if !strings.Contains(events, `no runtime for "kata" is configured`) {
			return fmt.Errorf("events:\n%s", events)
		}
		return nil
	})
	c.kubectl("delete", "pod", "nowhere", "--now")

	// Another runtime can be the default, and pods with the former one keep running.
	c.server.Terminate()
	run(t, host, "rm", "/run/runtimes.log")
	c = start(t, host, "--snapshotter=native", "--default-runtime=own")
	c.sleeper("by-default", "")
	if log := run(t, host, "cat", "/run/runtimes.log"); !strings.Contains(log, "own ") {
		t.Errorf("the default runtime did not run a pod:\n%s", log)
	}
	for _, name := range []string{"web", "client", "by-crun", "by-own", "by-old"} {
		if restarts := c.pod(name).Status.ContainerStatuses[0].RestartCount; restarts != 0 {
			t.Errorf("pod %s was restarted %d times", name, restarts)
		}
	}
	c.works()
}

// writeProgram writes an executable script on the host.
func writeProgram(t *testing.T, host *harness.Host, path, text string) {
	t.Helper()
	host.WriteFile(path, text)
	if err := os.Chmod(host.Path(path), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestKubeletConfiguration gives the kubelet a configuration file, one setting of which an argument
// overrides. Then it uses settings by which the kubelet must evict a pod.
func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	host.WriteFile("/etc/kedge/kubelet.yaml", head+`
maxPods: 7
podPidsLimit: 321
evictionHard: {memory.available: 64Mi}
shutdownGracePeriod: 20s
shutdownGracePeriodCriticalPods: 5s
`)
	c := start(t, host, "--kubelet-arg=config=/etc/kedge/kubelet.yaml", "--kubelet-arg=max-pods=8", "--kubelet-arg=node-labels=place=here")
	c.works()
	var answer struct {
		KubeletConfig struct {
			MaxPods       int
			PodPidsLimit  int
			EvictionHard  map[string]string
			ClusterDomain string
		}
	}
	if err := json.Unmarshal([]byte(c.kubectl("get", "--raw", "/api/v1/nodes/"+host.Name+"/proxy/configz")), &answer); err != nil {
		t.Fatal(err)
	}
	k := answer.KubeletConfig
	if k.MaxPods != 8 || k.PodPidsLimit != 321 || k.EvictionHard["memory.available"] != "64Mi" || k.ClusterDomain != "cluster.local" {
		t.Errorf("the kubelet's configuration is %+v", k)
	}
	node, err := c.client.CoreV1().Nodes().Get(c.ctx, host.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.Status.Allocatable.Pods().Value() != 8 || node.Labels["place"] != "here" {
		t.Errorf("got %s pods and labels %v, want 8 pods and place=here", node.Status.Allocatable.Pods(), node.Labels)
	}

	c.server.Terminate()
	host.WriteFile("/etc/kedge/kubelet.yaml", head+"evictionHard: {memory.available: 99.9%}\n")
	c = start(t, host, "--kubelet-arg=config=/etc/kedge/kubelet.yaml")
	// A pod that the kubelet looks at for the first time after its start is refused, and the others are
	// evicted. Only the Events are the same.
	c.eventually("a pod to be evicted, as some memory of the node is in use", func() error {
		if events := c.kubectl("get", "events", "--namespace=default", "--field-selector=reason=Evicted", "-o", "name"); events == "" {
			return errors.New("there is no Event of that")
		}
		return nil
	})
	if pressure := c.kubectl("get", "node", host.Name, "-o", "jsonpath={.status.conditions[?(@.type=='MemoryPressure')].status}"); pressure != "True" {
		t.Errorf("condition MemoryPressure is %s", pressure)
	}
}

// TestRefusedArguments starts kedge with arguments that upstream's programs do not have or cannot
// take. kedge must name them, end with status 1, and leave the host as it was.
func TestRefusedArguments(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	// state leaves out kernel modules and settings, which killall does not restore.
	before := state(t, host)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"two faults of the API server": {
			[]string{"--kube-apiserver-arg=audit-log-pth=/x", "--kube-apiserver-arg=secure-port=1"},
			[]string{"kube-apiserver has no argument audit-log-pth", "secure-port would have no effect"}},
		"a policy that is not there": {
			[]string{"--kube-apiserver-arg=audit-policy-file=/nowhere.yaml", "--kube-apiserver-arg=audit-log-path=/var/log/audit.log"},
			[]string{"/nowhere.yaml"}},
		"each program's": {
			[]string{"--kube-controller-manager-arg=nodes=1", "--kube-scheduler-arg=policy=x"},
			[]string{"kube-controller-manager has no argument nodes", "kube-scheduler has no argument policy"}},
		"scheduler configuration": {
			[]string{"--kube-scheduler-arg=config=/nowhere.yaml"},
			[]string{"/nowhere.yaml"}},
		"kubelet":               {[]string{"--kubelet-arg=maximum-pods=3"}, []string{"kubelet-arg", "maximum-pods"}},
		"kubelet's file":        {[]string{"--kubelet-arg=config=/nowhere.yaml"}, []string{"/nowhere.yaml"}},
		"service proxy":         {[]string{"--kube-proxy-arg=proxy-mode=ipvs"}, []string{"proxy-mode", "nftables or iptables"}},
		"a runtime":             {[]string{"--default-runtime=kata"}, []string{`default-runtime "kata" is not installed`}},
		"an address":            {[]string{"--node-ip=192.0.2.1"}, []string{"this host has no address 192.0.2.1"}},
		"a range of one family": {[]string{"--cluster-cidr=10.42.0.0/16,fd00:42::/56"}, []string{"service-cidr"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"server", "--kubelet-arg=cgroup-root=" + host.Cgroup()}, c.args...)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			cmd := host.Kedge(ctx, args...)
			output, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit status %d (%v), want 1", code, err)
			}
			lines := strings.Split(strings.TrimSpace(string(output)), "\n")
			message := strings.Join(lines[max(0, len(lines)-3):], "\n")
			for _, want := range c.want {
				if !strings.Contains(message, want) {
					t.Errorf("the end of the output does not say %q:\n%s", want, output)
				}
			}
			if after := state(t, host); after != before {
				t.Errorf("something is left: before\n%s\nafter\n%s", before, after)
			}
		})
	}
	// After all that, a right start works.
	start(t, host).works()
}
