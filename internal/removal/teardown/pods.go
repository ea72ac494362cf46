// Package teardown ends what a stopped kedge leaves running on purpose: pods,
// with their shims, cgroups and mounts. The agent package calls it for `kedge
// killall`, before each component takes away what it made.
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

	"golang.org/x/sys/unix"
)

// patience is how long killed processes may take to be gone: those in
// uninterruptible sleep, such as on a dead NFS server, never are.
const patience = 20 * time.Second

// shimName is the file name of the program that stands above containers.
const shimName = "containerd-shim-runc-v2"

// Pods describes where kedge's pods are.
type Pods struct {
	// Socket is the containerd socket the shims were started for.
	Socket string
	// State is containerd's state folder.
	State string
	// MountRoots are the folders below which everything mounted belongs to
	// pods, containers or kedge.
	MountRoots []string
}

// Kill ends all processes of the pods and their shims, and removes their
// cgroups, network namespaces and mounts. What other programs made stays. It
// does all it can and returns all errors together.
func (p Pods) Kill(ctx context.Context) error {
	// What tells kedge's from others' vanishes with the processes and mounts.
	namespaces := p.networkNamespaces()
	states := p.runcStates()
	roots, err := p.killProcesses(ctx)
	faults := []error{err}
	for _, root := range roots {
		faults = append(faults, removeCgroup(ctx, root))
	}
	// Those of a node without pods; if they are in use, it is not by kedge's, and
	// their kubelet needs the empty ones too.
	for _, root := range []string{"/kubepods", "/kubepods.slice"} {
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
	// Only if there is no more in them: others use them too.
	for _, folder := range []string{"/run/netns", filepath.Join(runcRoot, runcNamespace), runcRoot, filepath.Dir(runcRoot)} {
		_ = os.Remove(folder)
	}
	faults = append(faults, unmountBelow(append(p.MountRoots, p.State)...))
	return errors.Join(faults...)
}

// runcRoot is where runc notes what it runs, below it a folder for each of
// containerd's namespaces, whatever containerd's own state folder is:
// cmd/containerd-shim-runc-v2/process/utils.go, RuncRoot.
const (
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/utils.go RuncRoot
	//upstream:relies-on github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process/init.go NewRunc
	runcRoot      = "/run/containerd/runc"
	runcNamespace = "k8s.io"
)

// runcStates are runc's folders for the containers of this containerd.
func (p Pods) runcStates() []string {
	var states []string
	bundles, _ := filepath.Glob(filepath.Join(p.State, "io.containerd.runtime.v2.task", runcNamespace, "*"))
	for _, bundle := range bundles {
		states = append(states, filepath.Join(runcRoot, runcNamespace, filepath.Base(bundle)))
	}
	return states
}

// networkNamespaces are the files that keep the pods' network namespaces. They
// lie among those of other programs, so only the containers' own
// configuration tells which are kedge's.
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
			// Not /proc/PID/ns/net, which is another container's.
			if n.Type == "network" && strings.HasPrefix(filepath.Base(n.Path), "cni-") && !slices.Contains(files, n.Path) {
				files = append(files, n.Path)
			}
		}
	}
	return files
}

// killProcesses kills the shims and everything below them until none is left,
// and returns the cgroups, relative to a hierarchy's root, that pods were in.
func (p Pods) killProcesses(ctx context.Context) (cgroups []string, err error) {
	deadline := time.Now().Add(patience)
	for {
		pids, err := p.processes()
		if err != nil {
			return cgroups, err
		}
		if len(pids) == 0 {
			return cgroups, nil
		}
		for _, pid := range pids {
			for _, root := range podCgroups(pid) {
				if !slices.Contains(cgroups, root) {
					cgroups = append(cgroups, root)
				}
			}
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return cgroups, fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if err := pause(ctx, deadline); err != nil {
			return cgroups, fmt.Errorf("processes %v of pods do not end, though killed: %w", pids, err)
		}
	}
}

// processes returns the shims of this containerd and all their descendants.
func (p Pods) processes() ([]int, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("read mount namespace: %w", err)
	}
	children := map[int][]int{}
	var shims []int
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		parent, ok := parentOf(folder)
		if !ok {
			continue // ended meanwhile, or a zombie, which nobody can kill
		}
		children[parent] = append(children[parent], pid)
		// In another mount namespace the same path is another socket.
		if theirs, err := os.Readlink(filepath.Join(folder, "ns", "mnt")); err == nil && theirs == own && p.isShim(folder) {
			shims = append(shims, pid)
		}
	}
	all := shims
	for i := 0; i < len(all); i++ {
		for _, child := range children[all[i]] {
			if !slices.Contains(all, child) {
				all = append(all, child)
			}
		}
	}
	return all, nil
}

// parentOf reads a living process's parent from its folder in /proc.
func parentOf(folder string) (int, bool) {
	text, err := os.ReadFile(filepath.Join(folder, "stat"))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything: see proc_pid_stat(5).
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndex(string(text), ")")):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[0] == "Z" {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}

func (p Pods) isShim(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(string(text), "\x00")
	i := slices.Index(args, "-address")
	return filepath.Base(args[0]) == shimName && i > 0 && i+1 < len(args) && args[i+1] == p.Socket
}

// pause waits a moment, unless it is too late for that.
func pause(ctx context.Context, deadline time.Time) error {
	if time.Now().After(deadline) {
		return errors.New("timed out")
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}
