package host

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelOption is an option that the kernel is built with.
type kernelOption struct {
	name string
	// cgroups is the version of cgroups that needs it, or 0 for both.
	cgroups int
	need    Result // the result if it is missing
	cost    string
}

// kernelOptions are those that Kubernetes and kedge use. Sources: moby's
// contrib/check-config.sh, k8s.io/system-validators, and what flannel and the
// CNI plugins ask of the kernel. Those of nftables are tried: see nftables.
var kernelOptions = []kernelOption{
	{"NAMESPACES", 0, Fail, "no container can run"},
	{"NET_NS", 0, Fail, "no container can run"},
	{"PID_NS", 0, Fail, "no container can run"},
	{"IPC_NS", 0, Fail, "no container can run"},
	{"UTS_NS", 0, Fail, "no container can run"},
	{"USER_NS", 0, Warn, "pods with hostUsers: false do not start"},
	{"CGROUPS", 0, Fail, "no container can run"},
	{"MEMCG", 0, Fail, "no memory limits: the kubelet does not start"},
	{"CPUSETS", 1, Fail, "the kubelet does not start"},
	{"CGROUP_CPUACCT", 1, Fail, "the kubelet does not start"},
	{"CPUSETS", 2, Warn, "pods have no processors of their own (--kubelet-arg cpu-manager-policy=static)"},
	{"CGROUP_SCHED", 0, Fail, "no CPU shares: the kubelet does not start"},
	{"CFS_BANDWIDTH", 0, Warn, "CPU limits do not hold"},
	{"CGROUP_PIDS", 0, Fail, "no limits on processes: the kubelet does not start"},
	{"CGROUP_FREEZER", 1, Warn, "containers cannot be paused"},
	{"CGROUP_DEVICE", 1, Warn, "containers are not kept from devices"},
	{"CGROUP_BPF", 2, Warn, "containers are not kept from devices"},
	{"POSIX_MQUEUE", 0, Fail, "no container can run: runc mounts it"},
	{"KEYS", 0, Warn, "containers share kernel keys"},
	{"SECCOMP_FILTER", 0, Warn, "containers may make any system call"},
	{"OVERLAY_FS", 0, Warn, "images and containers are copied instead of stacked, which takes disk and time"},
	{"VETH", 0, Fail, "pods have no network"},
	{"BRIDGE", 0, Fail, "pods have no network"},
	{"BRIDGE_NETFILTER", 0, Warn, "a pod does not reach a Service whose endpoint is on the same node"},
	{"VXLAN", 0, Warn, "pods of different nodes do not reach each other, but with flannel-backend host-gw"},
	{"WIREGUARD", 0, Warn, "flannel-backend wireguard-native does not work"},
	{"NF_CONNTRACK", 0, Fail, "Services do not work"},
	{"NET_SCH_TBF", 0, Warn, "limits on the bandwidth of pods do not hold"},
	{"NET_SCH_INGRESS", 0, Warn, "limits on the bandwidth of pods do not hold"},
}

// checkKernel tries the options that tries has, unless this process may not, and looks up the others
// in the kernel's configuration, where the host has it. cgroups is the version of cgroups that pods get.
func checkKernel(ctx context.Context, root string, cgroups int, tries map[string]func(context.Context) error) []Check {
	options, file, unknown := kernelConfig(root)
	configuration := Check{Group: "kernel", Name: "configuration", Result: OK, Detail: file}
	if unknown != nil {
		configuration.Result, configuration.Detail = Warn, unknown.Error()
		configuration.Cost = "the next lines are all that can be checked without it: run `modprobe configs` or copy the configuration to /boot, and check again"
	}
	checks := []Check{configuration}
	for _, option := range kernelOptions {
		if option.cgroups != 0 && option.cgroups != cgroups {
			continue
		}
		c := Check{Group: "kernel", Name: option.name, Result: OK}
		lack := errNotTried
		if try := tries[option.name]; try != nil {
			lack = try(ctx)
		}
		switch value := options[option.name]; {
		case lack == nil:
			c.Detail = "tried"
		case !errors.Is(lack, errNotTried) && !errors.Is(lack, unix.EPERM):
			c.Result, c.Detail, c.Cost = option.need, lack.Error(), option.cost
		case unknown != nil:
			continue
		case value == "y":
			c.Detail = "built in"
		case value == "m":
			c.Detail = "module"
		default:
			c.Result, c.Detail, c.Cost = option.need, "missing", option.cost
		}
		checks = append(checks, c)
	}
	return checks
}

// errNotTried stands for the result of a try that does not exist.
var errNotTried = errors.New("not tried")

// configFiles are where distributions keep the configuration of the kernel with
// the version that %s stands for: k8s.io/system-validators, kernel_validator.go,
// and moby's contrib/check-config.sh.
var configFiles = []string{
	"proc/config.gz", "boot/config-%s", "usr/lib/modules/%s/config", "lib/modules/%s/config",
	"usr/lib/ostree-boot/config-%s", "usr/lib/kernel/config-%s", "lib/kernel/config-%s",
	"lib/modules/%s/build/.config", "usr/src/linux-headers-%s/.config", "usr/src/linux-%s/.config",
}

// kernelConfig reads the configuration of the running kernel from one of the
// places where distributions keep it.
func kernelConfig(root string) (options map[string]string, file string, err error) {
	release, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return nil, "", fmt.Errorf("read kernel version: %w", err)
	}
	v := strings.TrimSpace(string(release))
	var places []string
	for _, name := range configFiles {
		name = strings.ReplaceAll(name, "%s", v)
		places = append(places, "/"+name)
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
	return nil, "", fmt.Errorf("no configuration of kernel %s: there is none of %s", v, strings.Join(places, ", "))
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
