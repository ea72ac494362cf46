package host

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// kernelOption is an option that the kernel is built with.
type kernelOption struct {
	name string
	need Result // the result if it is missing
	cost string
}

// kernelOptions are those that Kubernetes and kedge use. Sources: moby's
// contrib/check-config.sh, k8s.io/system-validators, and what kube-proxy's
// nftables mode, flannel and the CNI plugins ask of the kernel.
var kernelOptions = []kernelOption{
	{"NAMESPACES", Fail, "no container can run"},
	{"NET_NS", Fail, "no container can run"},
	{"PID_NS", Fail, "no container can run"},
	{"IPC_NS", Fail, "no container can run"},
	{"UTS_NS", Fail, "no container can run"},
	{"USER_NS", Warn, "pods with hostUsers: false do not start"},
	{"CGROUPS", Fail, "no container can run"},
	{"MEMCG", Fail, "no memory limits: the kubelet does not start"},
	{"CPUSETS", Fail, "the kubelet does not start"},
	{"CGROUP_SCHED", Fail, "no CPU shares: the kubelet does not start"},
	{"CFS_BANDWIDTH", Warn, "CPU limits do not hold"},
	{"CGROUP_PIDS", Fail, "no limits on processes: the kubelet does not start"},
	{"CGROUP_FREEZER", Warn, "containers cannot be paused (cgroup version 1)"},
	{"CGROUP_DEVICE", Warn, "containers are not kept from devices (cgroup version 1)"},
	{"CGROUP_BPF", Warn, "containers are not kept from devices (cgroup version 2)"},
	{"POSIX_MQUEUE", Fail, "no container can run: runc mounts it"},
	{"KEYS", Warn, "containers share kernel keys"},
	{"SECCOMP_FILTER", Warn, "containers may make any system call"},
	{"OVERLAY_FS", Warn, "images and containers are copied instead of stacked, which takes disk and time"},
	{"VETH", Fail, "pods have no network"},
	{"BRIDGE", Fail, "pods have no network"},
	{"BRIDGE_NETFILTER", Warn, "a pod does not reach a Service whose endpoint is on the same node"},
	{"VXLAN", Warn, "pods of different nodes do not reach each other, but with flannel-backend host-gw"},
	{"WIREGUARD", Warn, "flannel-backend wireguard-native does not work"},
	{"NF_CONNTRACK", Fail, "Services do not work"},
	{"NF_TABLES", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NF_TABLES_INET", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NFT_CT", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NFT_NAT", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NFT_MASQ", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NFT_REJECT", Warn, "connections to Services without endpoints hang"},
	{"NFT_FIB", Warn, "NodePorts need --kube-proxy-arg proxy-mode=iptables"},
	{"NFT_NUMGEN", Warn, "Services need --kube-proxy-arg proxy-mode=iptables"},
	{"NET_SCH_TBF", Warn, "limits on the bandwidth of pods do not hold"},
	{"NET_SCH_INGRESS", Warn, "limits on the bandwidth of pods do not hold"},
}

// checkKernel looks the options up in the kernel's configuration, where the
// host has it.
func checkKernel(root string) []Check {
	options, file, err := kernelConfig(root)
	if err != nil {
		return []Check{{Group: "kernel", Name: "configuration", Result: Warn, Detail: err.Error(),
			Cost: "the kernel's features cannot be checked: load the module configs, or see whether a server starts"}}
	}
	checks := []Check{{Group: "kernel", Name: "configuration", Result: OK, Detail: file}}
	for _, option := range kernelOptions {
		c := Check{Group: "kernel", Name: option.name, Result: OK}
		switch options[option.name] {
		case "y":
			c.Detail = "built in"
		case "m":
			c.Detail = "module"
		default:
			c.Result, c.Detail, c.Cost = option.need, "missing", option.cost
		}
		checks = append(checks, c)
	}
	return checks
}

// kernelConfig reads the configuration of the running kernel from one of the
// places where distributions keep it.
func kernelConfig(root string) (options map[string]string, file string, err error) {
	release, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return nil, "", fmt.Errorf("read kernel version: %w", err)
	}
	v := strings.TrimSpace(string(release))
	for _, name := range []string{"proc/config.gz", "boot/config-" + v, "lib/modules/" + v + "/config", "lib/modules/" + v + "/build/.config"} {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			continue
		}
		defer f.Close()
		var reader io.Reader = f
		if strings.HasSuffix(name, ".gz") {
			if reader, err = gzip.NewReader(f); err != nil {
				return nil, "", fmt.Errorf("read /%s: %w", name, err)
			}
		}
		options, err := parseKernelConfig(reader)
		if err != nil {
			return nil, "", fmt.Errorf("read /%s: %w", name, err)
		}
		return options, "/" + name, nil
	}
	return nil, "", fmt.Errorf("no configuration of kernel %s in /proc/config.gz, /boot or /lib/modules", v)
}

func parseKernelConfig(r io.Reader) (map[string]string, error) {
	options := map[string]string{}
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(scanner.Text(), "CONFIG_"), "=")
		if ok && !strings.HasPrefix(name, "#") {
			options[name] = value
		}
	}
	return options, scanner.Err()
}
