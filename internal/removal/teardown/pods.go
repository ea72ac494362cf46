// Package teardown ends what a stopped kedge leaves running on purpose: pods, with their
// shims, cgroups and mounts. Package cli calls it for `kedge killall` and `kedge
// uninstall`.
package teardown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// patience is how long killed processes may take to end. Processes in uninterruptible
// sleep, such as on a dead NFS server, never end.
const patience = 20 * time.Second

// shimName is the file name of the program that runs above each pod's containers.
const shimName = "containerd-shim-runc-v2"

// Pods describes where kedge's pods are.
type Pods struct {
	// Socket is the containerd socket that the shims were started for.
	Socket string
	// State is containerd's state folder.
	State string
	// MountRoots are the folders below which every mount belongs to pods, containers or
	// kedge.
	MountRoots []string
}

// Kill ends all processes of the pods and their shims, and removes their cgroups, network
// namespaces and mounts. What other programs made stays. Kill does all it can and returns
// all errors together.
func (p Pods) Kill(ctx context.Context) error {
	// Read first, because the traces that mark these as kedge's vanish with the processes
	// and mounts.
	namespaces := p.networkNamespaces()
	states := p.runcStates()
	roots, err := p.killProcesses(ctx)
	faults := []error{err}
	for _, root := range roots {
		faults = append(faults, removeCgroup(ctx, root))
	}
	// The cgroups of a node without pods. If they are in use, another kubelet or kedge uses them,
	// which also needs the empty ones.
	for _, slice := range []struct{ name, cgroup string }{{podSlice, "/" + podSlice}, {host.ShimSlice, host.ShimCgroup}} {
		if !slices.ContainsFunc(cgroupFolders(slice.cgroup), populated) {
			faults = append(faults, stopSlice(ctx, slice.name))
		}
	}
	for _, root := range []string{"/kubepods", "/" + podSlice} {
		for _, folder := range cgroupFolders(root) {
			if !populated(folder) {
				_ = removeCgroupFolder(folder, keepMembers)
			}
		}
	}
	for _, namespace := range namespaces {
		faults = append(faults, unmount(namespace), os.Remove(namespace))
	}
	for _, state := range states {
		faults = append(faults, os.RemoveAll(state))
	}
	// Only if they are empty, because other programs use them too.
	for _, folder := range []string{"/run/netns", filepath.Join(runcRoot, runcNamespace), runcRoot, filepath.Dir(runcRoot)} {
		_ = os.Remove(folder)
	}
	faults = append(faults, unmountBelow(append(p.MountRoots, p.State)...))
	return errors.Join(faults...)
}

// runcRoot is where runc keeps its state, in a folder for each of containerd's
// namespaces. It does not depend on containerd's own state folder:
// cmd/containerd-shim-runc-v2/process/utils.go, RuncRoot.
const (
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/utils.go RuncRoot
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/init.go NewRunc
	runcRoot      = "/run/containerd/runc"
	runcNamespace = "k8s.io"
)

// runcStates returns runc's folders for the containers of this containerd.
func (p Pods) runcStates() []string {
	var states []string
	bundles, _ := filepath.Glob(filepath.Join(p.State, "io.containerd.runtime.v2.task", runcNamespace, "*"))
	for _, bundle := range bundles {
		states = append(states, filepath.Join(runcRoot, runcNamespace, filepath.Base(bundle)))
	}
	return states
}

// networkNamespaces returns the files that keep the pods' network namespaces. They are
// beside those of other programs. Only the containers' own configurations tell which are
// kedge's.
func (p Pods) networkNamespaces() []string {
	var files []string
	configs, _ := filepath.Glob(filepath.Join(p.State, "io.containerd.runtime.v2.task", "*", "*", "config.json"))
	for _, config := range configs {
		text, err := os.ReadFile(config)
		if err != nil {
			continue // removed meanwhile
		}
		// See https://github.com/opencontainers/runtime-spec/blob/main/config-linux.md#namespaces
		var spec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
		if json.Unmarshal(text, &spec) != nil {
			continue // half written when kedge was killed
		}
		for _, n := range spec.Linux.Namespaces {
			// Not /proc/PID/ns/net, which belongs to another container.
			if n.Type == "network" && strings.HasPrefix(filepath.Base(n.Path), "cni-") && !slices.Contains(files, n.Path) {
				files = append(files, n.Path)
			}
		}
	}
	return files
}

// killProcesses kills the shims and everything below them until none is left. It returns
// the cgroups that the pods were in, relative to a hierarchy's root.
func (p Pods) killProcesses(ctx context.Context) (cgroups []string, err error) {
	deadline := time.Now().Add(patience)
	for {
		processes, err := p.processes()
		if err != nil {
			return cgroups, err
		}
		if len(processes) == 0 {
			return cgroups, nil
		}
		for _, process := range processes {
			for _, root := range podCgroups(process) {
				if !slices.Contains(cgroups, root) {
					cgroups = append(cgroups, root)
				}
			}
		}
		for _, process := range processes {
			if err := unix.Kill(process.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return cgroups, fmt.Errorf("kill process %d: %w", process.PID, err)
			}
		}
		if err := pause(ctx, deadline); err != nil {
			return cgroups, fmt.Errorf("processes %v of pods do not end after SIGKILL: %w: restart the host if they never do", pidsOf(processes), err)
		}
	}
}

// processes returns the shims of this containerd and all their descendants.
func (p Pods) processes() ([]procfs.Proc, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	own, err := mountNamespace("self")
	if err != nil {
		return nil, fmt.Errorf("read mount namespace: %w", err)
	}
	children := map[int][]procfs.Proc{}
	var found []procfs.Proc
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || stat.State == "Z" {
			continue // ended meanwhile, or a zombie, which nobody can kill
		}
		children[stat.PPID] = append(children[stat.PPID], process)
		// In another mount namespace, the same path is another socket.
		if theirs, err := mountNamespace(strconv.Itoa(process.PID)); err == nil && theirs == own && p.isShim(process) {
			found = append(found, process)
		}
	}
	for i := 0; i < len(found); i++ {
		for _, child := range children[found[i].PID] {
			if !slices.Contains(found, child) {
				found = append(found, child)
			}
		}
	}
	return found, nil
}

func mountNamespace(pid string) (string, error) {
	return os.Readlink(filepath.Join("/proc", pid, "ns", "mnt"))
}

func (p Pods) isShim(process procfs.Proc) bool {
	args, err := process.CmdLine()
	if err != nil || len(args) == 0 {
		return false
	}
	i := slices.Index(args, "-address")
	return filepath.Base(args[0]) == shimName && i > 0 && i+1 < len(args) && args[i+1] == p.Socket
}

func pidsOf(processes []procfs.Proc) []int {
	pids := make([]int, len(processes))
	for i, process := range processes {
		pids[i] = process.PID
	}
	return pids
}

// pause waits a moment. It fails if the deadline has passed or ctx ends.
func pause(ctx context.Context, deadline time.Time) error {
	if time.Now().After(deadline) {
		return errors.New("timed out")
	}
	return loop.Sleep(ctx, 50*time.Millisecond)
}
