package support

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mostLog is how many bytes of a file are read at most, from its end.
const mostLog = 8 << 20

// hostFiles are the files that describe a machine.
var hostFiles = []string{
	"/etc/os-release", "/proc/version", "/proc/cmdline", "/proc/cpuinfo", "/proc/meminfo", "/proc/loadavg", "/proc/uptime",
	"/proc/modules", "/proc/mounts", "/proc/cgroups", "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory",
	"/sys/fs/cgroup/cgroup.controllers", "/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/net/netfilter/nf_conntrack_max",
	"/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/pid_max", "/proc/sys/fs/file-nr", "/proc/net/sockstat", "/proc/net/tcp", "/proc/net/udp",
	"/proc/net/tcp6", "/proc/net/udp6", "/etc/resolv.conf", "/etc/hosts",
}

// Host returns the parts that describe the machine: the kernel, the network, and the free
// space in folders.
func Host(folders ...string) []Part {
	parts := []Part{
		{"host/kernel-log.txt", kernelLog},
		{"host/disks.txt", func(context.Context) ([]byte, error) { return disks(folders) }},
		{"network/interfaces.txt", interfaces},
		{"network/routes.txt", routes},
	}
	for _, file := range hostFiles {
		parts = append(parts, File(filepath.Join("host", file), file))
	}
	return parts
}

// File returns a part with the end of a file.
func File(name, path string) Part {
	return Part{name, func(context.Context) ([]byte, error) {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Size() > mostLog {
			if _, err := file.Seek(-mostLog, io.SeekEnd); err != nil {
				return nil, err
			}
		}
		return io.ReadAll(file)
	}}
}

// Command returns a part with the output of a command.
func Command(name string, environment []string, command string, args ...string) Part {
	return Part{name, func(ctx context.Context) ([]byte, error) {
		var output, faults bytes.Buffer
		run := exec.CommandContext(ctx, command, args...)
		run.Env = append(os.Environ(), environment...)
		run.Stdout, run.Stderr = &output, &faults
		if err := run.Run(); err != nil {
			return output.Bytes(), fmt.Errorf("%w: %s", err, bytes.TrimSpace(faults.Bytes()))
		}
		return output.Bytes(), nil
	}}
}

// ownLines mark lines of the log that quote the output of a program in a pod, or its
// arguments (pkg/kubelet/lifecycle/handlers.go, pkg/kubelet/prober/prober.go,
// k8s.io/cri-client/pkg/remote_runtime.go). With v above 7, such lines quote whole
// objects, including Secrets (k8s.io/client-go/rest/request.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/lifecycle/handlers.go handlerRunner.Run
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/prober/prober.go prober.probe
//upstream:relies-on k8s.io/cri-client/pkg/remote_runtime.go remoteRuntimeService.execSyncV1 remoteRuntimeService.execV1
//upstream:relies-on k8s.io/client-go/rest/request.go Request.Do Request.DoRaw Request.Watch Request.Stream Request.transformResponse logBody
var ownLines = [][]byte{
	[]byte("lifecycle hook ("), []byte("Probe failed"), []byte("Probe errored"), []byte(" cmd from runtime service failed"),
	[]byte("' exited with "), []byte("Request Body"), []byte("Response Body"),
}

// Log returns a part of the log without the lines that quote the content of pods or
// objects.
func Log(part Part) Part {
	return Part{part.Name, func(ctx context.Context) ([]byte, error) {
		text, err := part.Get(ctx)
		var kept bytes.Buffer
		for line := range bytes.Lines(text) {
			if slices.ContainsFunc(ownLines, func(own []byte) bool { return bytes.Contains(line, own) }) {
				line = []byte("(kedge has left out a line that quotes the content of pods or objects)\n")
			}
			kept.Write(line)
		}
		return kept.Bytes(), err
	}}
}

// kernelLog reads the kernel's ring, as dmesg does.
func kernelLog(context.Context) ([]byte, error) {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}
	ring := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, ring)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}
	return ring[:n], nil
}

func disks(folders []string) ([]byte, error) {
	var text bytes.Buffer
	var faults []error
	for _, folder := range folders {
		var stat unix.Statfs_t
		if err := unix.Statfs(folder, &stat); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", folder, err))
			continue
		}
		block := uint64(stat.Bsize)
		fmt.Fprintf(&text, "%s: type %#x, %d of %d MiB free, %d of %d files free\n",
			folder, stat.Type, stat.Bavail*block>>20, stat.Blocks*block>>20, stat.Ffree, stat.Files)
	}
	return text.Bytes(), errors.Join(faults...)
}

func interfaces(context.Context) ([]byte, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var text bytes.Buffer
	var faults []error
	for _, link := range links {
		a := link.Attrs()
		fmt.Fprintf(&text, "%d %s: %s, %s, mtu %d, %s, %s", a.Index, a.Name, link.Type(), a.OperState, a.MTU, a.HardwareAddr, a.Flags)
		if s := a.Statistics; s != nil {
			fmt.Fprintf(&text, ", in %d packets %d errors %d dropped, out %d packets %d errors %d dropped",
				s.RxPackets, s.RxErrors, s.RxDropped, s.TxPackets, s.TxErrors, s.TxDropped)
		}
		fmt.Fprintln(&text)
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		faults = append(faults, err)
		for _, address := range addresses {
			fmt.Fprintf(&text, "\t%s\n", address.IPNet)
		}
	}
	return text.Bytes(), errors.Join(faults...)
}

func routes(context.Context) ([]byte, error) {
	var text bytes.Buffer
	var faults []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		faults = append(faults, err)
		for _, rule := range rules {
			fmt.Fprintf(&text, "rule %s\n", rule)
		}
		list, err := netlink.RouteList(nil, family)
		faults = append(faults, err)
		for _, route := range list {
			fmt.Fprintln(&text, route)
		}
	}
	return text.Bytes(), errors.Join(faults...)
}
