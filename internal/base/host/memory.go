package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that this process may use: the machine's,
// or the limit of a cgroup it is in.
func Memory() (uint64, error) { return probe{root: "/"}.availableMemory() }

func (p probe) availableMemory() (uint64, error) {
	available, err := p.memory()
	if err != nil {
		return 0, err
	}
	// Without cgroups, or in one that cannot be seen from here, there is no limit.
	cgroups, _ := os.ReadFile(p.path("proc/self/cgroup"))
	for line := range strings.Lines(string(cgroups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch path := parts[2]; {
		case parts[1] == "": // version 2: every folder on the way may have one
			for {
				available = min(available, p.limit("sys/fs/cgroup", path, "memory.max"))
				if path == "/" {
					break
				}
				path = filepath.Dir(path)
			}
		case parts[1] == "memory":
			available = min(available, p.hierarchicalLimit("sys/fs/cgroup/memory", path, "memory.stat"))
		}
	}
	return available, nil
}

// noLimit is more than any machine has.
const noLimit = 1<<64 - 1

// limit reads a file that has a number, or "max".
func (p probe) limit(elements ...string) uint64 {
	text, err := os.ReadFile(p.path(elements...))
	if err != nil {
		return noLimit
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return noLimit
	}
	return limit
}

// hierarchicalLimit reads version 1's memory.stat, which knows those above too.
func (p probe) hierarchicalLimit(elements ...string) uint64 {
	stat, err := os.ReadFile(p.path(elements...))
	if err != nil {
		return noLimit
	}
	value, _ := field(stat, "hierarchical_memory_limit")
	limit, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return noLimit
	}
	return limit
}
