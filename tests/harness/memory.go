package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup1"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// MemoryCgroup holds processes that are started on a host. It does not hold the host's pods, which the
// kubelet puts elsewhere (Host.Cgroup).
type MemoryCgroup struct {
	folder string
	v2     *os.File
}

// ContainMemory puts processes that are started on the host from now on into a memory cgroup. limit
// is in bytes, 0 means none. The cgroup is removed together with the host.
func (h *Host) ContainMemory(limit int64) *MemoryCgroup {
	h.t.Helper()
	m, err := h.containMemory(limit)
	if err != nil {
		h.t.Fatalf("make memory cgroup for host %s: %v", h.Name, err)
	}
	return m
}

func (h *Host) containMemory(limit int64) (*MemoryCgroup, error) {
	v1, v2, err := hosts.Hierarchies()
	if err != nil {
		return nil, err
	}
	m := &MemoryCgroup{}
	limitFile := "memory.limit_in_bytes"
	for _, root := range v1 {
		if filepath.Base(root) != "memory" {
			continue
		}
		// It is below the test's cgroup, so that a limit of that one applies too.
		m.folder = filepath.Join(root, ownMemoryCgroup(), h.network.name, h.Name)
		if err := os.MkdirAll(m.folder, 0o755); err != nil {
			return nil, err
		}
		var joined error
		h.do(func() {
			// Version 1 accepts single threads, and their children follow.
			joined = os.WriteFile(filepath.Join(m.folder, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0o644)
		})
		if joined != nil {
			return nil, joined
		}
	}
	if m.folder == "" && len(v2) > 0 {
		// It is beside the pods' cgroup: a cgroup with processes cannot have children.
		path := h.cgroup + "-system"
		if err := hosts.MakeCgroup(path); err != nil {
			return nil, err
		}
		m.folder, limitFile = filepath.Join(v2[0], path), "memory.max"
		if m.v2, err = os.Open(m.folder); err != nil {
			return nil, err
		}
	}
	if m.folder == "" {
		return nil, errors.New("no memory controller is mounted below /sys/fs/cgroup")
	}
	h.memory = m
	if limit > 0 {
		err = os.WriteFile(filepath.Join(m.folder, limitFile), []byte(strconv.FormatInt(limit, 10)), 0o644)
	}
	return m, err
}

// ownMemoryCgroup returns the path of this process's memory cgroup of version 1.
func ownMemoryCgroup() string {
	paths, _ := cgroup1.ParseCgroupFile("/proc/self/cgroup")
	return paths["memory"]
}

// Usage returns the bytes that the kernel counts now, including page cache.
func (m *MemoryCgroup) Usage() (float64, error) {
	return m.read("memory.usage_in_bytes", "memory.current")
}

// Peak returns the highest value of Usage.
func (m *MemoryCgroup) Peak() (float64, error) {
	return m.read("memory.max_usage_in_bytes", "memory.peak")
}

func (m *MemoryCgroup) read(v1, v2 string) (float64, error) {
	name := v1
	if m.v2 != nil {
		name = v2
	}
	text, err := os.ReadFile(filepath.Join(m.folder, name))
	if err != nil {
		return 0, fmt.Errorf("read memory cgroup: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}

// OOMKills returns how many processes the kernel killed at the limit.
func (m *MemoryCgroup) OOMKills() (int, error) {
	name := "memory.oom_control"
	if m.v2 != nil {
		name = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(m.folder, name))
	if err != nil {
		return 0, fmt.Errorf("read memory cgroup: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(count))
		}
	}
	return 0, fmt.Errorf("read memory cgroup: no oom_kill in %s", name)
}
