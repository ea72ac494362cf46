package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	shimName = "containerd-shim-runc-v2"
	// clockTicks is USER_HZ, which is 100 on every Linux.
	clockTicks = 100
	sectorSize = 512
	// clientName is of the user's own program, which is not the installation's.
	clientName = "kubectl"
)

// usage is what processes take: memory now, the rest since they started.
type usage struct {
	// PSS and Anonymous are bytes. PSS is with what was swapped out.
	PSS, Anonymous float64
	// CPU is seconds, those of children that ended included.
	CPU float64
	// Written is bytes that went, or will go, to a disk.
	Written float64
}

func (u *usage) add(other usage) {
	u.PSS += other.PSS
	u.Anonymous += other.Anonymous
	u.CPU += other.CPU
	u.Written += other.Written
}

// snapshot is what a host takes, the pods' own processes not included.
type snapshot struct {
	// Installation is everything but the next two.
	Installation, Shims usage
	// Sandboxes are the processes that hold pods' namespaces.
	Sandboxes usage
	// Files is bytes of tmpfs and of memory without a name (memfd).
	Files float64
	// Programs has the same by name of the program.
	Programs map[string]usage
}

// PSS is of everything: what a user's pods cannot have.
func (s snapshot) PSS() float64 {
	return s.Installation.PSS + s.Shims.PSS + s.Sandboxes.PSS + s.Files
}

// Anonymous is the part of PSS that cannot be given back.
func (s snapshot) Anonymous() float64 {
	return s.Installation.Anonymous + s.Shims.Anonymous + s.Sandboxes.Anonymous + s.Files
}

// CPU is seconds since the start.
func (s snapshot) CPU() float64 { return s.Installation.CPU + s.Shims.CPU }

// takeSnapshot reads /proc. A host's own processes are those in its PID
// namespace: containers are in others.
func takeSnapshot(h *harness.Host) (snapshot, error) {
	s := snapshot{Programs: map[string]usage{}}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.FirstProcess()))
	if err != nil {
		return s, err
	}
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s, err
	}
	parents := map[string]bool{}
	var others []string
	memory := map[uint64]float64{}
	for _, folder := range folders {
		link, err := os.Readlink(folder + "/ns/pid")
		if err != nil {
			continue
		}
		if link != own {
			others = append(others, folder)
			continue
		}
		name, u, err := readProcess(folder)
		if ended(err) {
			continue
		}
		if err != nil {
			return s, err
		}
		switch name {
		case "":
			// The host's first process is the harness's, but has the children
			// whose parents ended.
			u.PSS, u.Anonymous = 0, 0
			s.Installation.add(u)
			continue
		case clientName:
			continue // the user's
		case shimName:
			s.Shims.add(u)
		default:
			s.Installation.add(u)
		}
		parents[filepath.Base(folder)] = true
		addMemoryFiles(memory, folder)
		program := s.Programs[name]
		program.add(u)
		s.Programs[name] = program
	}
	if s.Sandboxes, err = sandboxes(parents, others); err != nil {
		return s, err
	}
	for _, bytes := range memory {
		s.Files += bytes
	}
	tmpfs, err := tmpfsBytes(h)
	s.Files += tmpfs
	return s, err
}

// ended reports whether err says that a process is no more.
func ended(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// sandboxes returns what the first processes of pods take: of the children of
// parents, the oldest in each network namespace, which is made for a pod.
func sandboxes(parents map[string]bool, folders []string) (usage, error) {
	type process struct {
		folder string
		start  float64
	}
	oldest := map[string]process{}
	for _, folder := range folders {
		fields, err := readStat(folder)
		if err != nil || !parents[fields[1]] {
			continue
		}
		network, err := os.Readlink(folder + "/ns/net")
		if err != nil {
			continue
		}
		// Field 22 of proc(5).
		start, err := strconv.ParseFloat(fields[19], 64)
		if err != nil {
			return usage{}, fmt.Errorf("read %s/stat: %w", folder, err)
		}
		if first, ok := oldest[network]; !ok || start < first.start {
			oldest[network] = process{folder, start}
		}
	}
	var sum usage
	for _, first := range oldest {
		_, u, err := readProcess(first.folder)
		if err != nil && !ended(err) {
			return usage{}, err
		}
		sum.PSS += u.PSS
		sum.Anonymous += u.Anonymous
	}
	return sum, nil
}

// addMemoryFiles adds the bytes of each memfd that a process holds, by inode.
// What it has mapped of one is in its PSS too, and counts twice.
func addMemoryFiles(bytes map[uint64]float64, folder string) {
	links, _ := filepath.Glob(folder + "/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || !strings.HasPrefix(target, "/memfd:") {
			continue
		}
		var info syscall.Stat_t
		if err := syscall.Stat(link, &info); err == nil {
			bytes[info.Ino] = float64(info.Blocks) * sectorSize
		}
	}
}

// tmpfsBytes returns what is in the file systems in memory that are the host's
// and not the machine's.
func tmpfsBytes(h *harness.Host) (float64, error) {
	machine, err := tmpfsMounts("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	mounts, err := tmpfsMounts(fmt.Sprintf("/proc/%d/mountinfo", h.FirstProcess()))
	if err != nil {
		return 0, err
	}
	var bytes float64
	for device, folder := range mounts {
		if _, shared := machine[device]; shared {
			continue
		}
		var info syscall.Statfs_t
		if err := syscall.Statfs(h.Path(folder), &info); err != nil {
			continue // unmounted meanwhile
		}
		bytes += float64(info.Blocks-info.Bfree) * float64(info.Bsize)
	}
	return bytes, nil
}

// tmpfsMounts returns a folder for each tmpfs, by device, of a mountinfo.
func tmpfsMounts(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	mounts := map[string]string{}
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) > 4 && strings.HasPrefix(after, "tmpfs ") {
			mounts[fields[2]] = fields[4]
		}
	}
	return mounts, nil
}

// readProcess reads what the process with this folder below /proc takes, and
// the name of its program, which is empty for a namespace's first process.
func readProcess(folder string) (string, usage, error) {
	var u usage
	command, err := os.ReadFile(folder + "/cmdline")
	if err != nil {
		return "", u, err
	}
	argument, _, _ := bytes.Cut(command, []byte{0})
	name := filepath.Base(string(argument))

	status, err := readFields(folder + "/status")
	if err != nil {
		return "", u, err
	}
	pids := strings.Fields(status["NSpid"])
	if len(pids) > 0 && pids[len(pids)-1] == "1" {
		name = ""
	}
	memory, err := readFields(folder + "/smaps_rollup")
	if err != nil {
		return "", u, err
	}
	u.PSS = kibibytes(memory["Pss"]) + kibibytes(memory["SwapPss"])
	u.Anonymous = kibibytes(memory["Anonymous"]) + kibibytes(memory["SwapPss"])

	stat, err := readStat(folder)
	if err != nil {
		return "", u, err
	}
	// Fields 14 to 17 of proc(5): utime, stime, cutime and cstime.
	for _, field := range stat[11:15] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return "", u, fmt.Errorf("read %s/stat: %w", folder, err)
		}
		u.CPU += ticks / clockTicks
	}

	io, err := readFields(folder + "/io")
	if err != nil {
		return "", u, err
	}
	written, err := strconv.ParseFloat(io["write_bytes"], 64)
	if err != nil {
		return "", u, fmt.Errorf("read %s/io: %w", folder, err)
	}
	cancelled, err := strconv.ParseFloat(io["cancelled_write_bytes"], 64)
	if err != nil {
		return "", u, fmt.Errorf("read %s/io: %w", folder, err)
	}
	u.Written = written - cancelled
	return name, u, nil
}

// readStat returns the fields of a process's stat from the third on: the second,
// the name in brackets, may hold anything.
func readStat(folder string) ([]string, error) {
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("read %s/stat: too short", folder)
	}
	return fields, nil
}

// readFields reads lines of the form "name: value".
func readFields(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields, nil
}

// kibibytes returns the bytes of a value such as "12 kB", or 0.
func kibibytes(value string) float64 {
	number, _ := strconv.ParseFloat(strings.TrimSuffix(value, " kB"), 64)
	return number * 1024
}
