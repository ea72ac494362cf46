package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	shimName = "containerd-shim-runc-v2"
	// clockTicks is USER_HZ, which is 100 on every Linux.
	clockTicks = 100
	sectorSize = 512
	// clientName is the name of the user's own program, which does not belong to the installation.
	clientName = "kubectl"
)

// usage is the resource use of processes: memory now, and totals since they started.
type usage struct {
	// PSS and Anonymous are in bytes. PSS includes swapped memory.
	PSS, Anonymous float64
	// CPU is in seconds, and includes children that have ended.
	CPU float64
	// Written is how many bytes were, or will be, written to a disk.
	Written float64
}

func (u *usage) add(other usage) {
	u.PSS += other.PSS
	u.Anonymous += other.Anonymous
	u.CPU += other.CPU
	u.Written += other.Written
}

// snapshot is the resource use of a host without the pods' own processes.
type snapshot struct {
	// Installation is everything but the next two.
	Installation, Shims usage
	// Sandboxes are the processes that hold pods' namespaces.
	Sandboxes usage
	// Files is the size in bytes of tmpfs and of memory files (memfd).
	Files float64
	// Programs has the resource use by program.
	Programs map[string]usage
}

// PSS returns the PSS of everything, which is memory that a user's pods cannot have.
func (s snapshot) PSS() float64 {
	return s.Installation.PSS + s.Shims.PSS + s.Sandboxes.PSS + s.Files
}

// Anonymous returns the part of PSS that cannot be given back.
func (s snapshot) Anonymous() float64 {
	return s.Installation.Anonymous + s.Shims.Anonymous + s.Sandboxes.Anonymous + s.Files
}

// CPU returns the processor time in seconds since the start.
func (s snapshot) CPU() float64 { return s.Installation.CPU + s.Shims.CPU }

// takeSnapshot reads /proc. A host's own processes are those in its PID namespace. Containers are
// in other namespaces.
func takeSnapshot(h *harness.Host) (snapshot, error) {
	s := snapshot{Programs: map[string]usage{}}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.FirstProcess()))
	if err != nil {
		return s, err
	}
	processes, err := procfs.AllProcs()
	if err != nil {
		return s, err
	}
	parents := map[int]bool{}
	var others []procfs.Proc
	memory := map[uint64]float64{}
	for _, process := range processes {
		link, err := os.Readlink(procFolder(process) + "/ns/pid")
		if err != nil {
			continue
		}
		if link != own {
			others = append(others, process)
			continue
		}
		name, u, err := readProcess(process)
		if ended(err) {
			continue
		}
		if err != nil {
			return s, err
		}
		switch name {
		case "":
			// The host's first process belongs to the harness, but it has the children whose
			// parents have ended.
			u.PSS, u.Anonymous = 0, 0
			s.Installation.add(u)
			continue
		case clientName:
			continue // this process is the user's
		case shimName:
			s.Shims.add(u)
		default:
			s.Installation.add(u)
		}
		parents[process.PID] = true
		addMemoryFiles(memory, process)
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

func procFolder(process procfs.Proc) string { return fmt.Sprint("/proc/", process.PID) }

// ended tells whether err means that a process has ended.
func ended(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// sandboxes returns the resource use of the first processes of pods: of the children of parents,
// the oldest in each network namespace. Each pod has its own.
func sandboxes(parents map[int]bool, processes []procfs.Proc) (usage, error) {
	type started struct {
		procfs.Proc
		at uint64
	}
	oldest := map[string]started{}
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || !parents[stat.PPID] {
			continue
		}
		network, err := os.Readlink(procFolder(process) + "/ns/net")
		if err != nil {
			continue
		}
		if first, ok := oldest[network]; !ok || stat.Starttime < first.at {
			oldest[network] = started{process, stat.Starttime}
		}
	}
	var sum usage
	for _, first := range oldest {
		_, u, err := readProcess(first.Proc)
		if err != nil && !ended(err) {
			return usage{}, err
		}
		sum.PSS += u.PSS
		sum.Anonymous += u.Anonymous
	}
	return sum, nil
}

// addMemoryFiles adds the bytes of each memfd that a process holds, by inode. Parts that the
// process has mapped are in its PSS too, so they count twice.
func addMemoryFiles(bytes map[uint64]float64, process procfs.Proc) {
	links, _ := filepath.Glob(procFolder(process) + "/fd/*")
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

// tmpfsBytes returns the size in bytes of file systems in memory that belong to the host and not to
// the machine.
func tmpfsBytes(h *harness.Host) (float64, error) {
	machine, err := tmpfsMounts(os.Getpid())
	if err != nil {
		return 0, err
	}
	mounts, err := tmpfsMounts(h.FirstProcess())
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

// tmpfsMounts returns a folder for each tmpfs that a process sees, by device.
func tmpfsMounts(pid int) (map[string]string, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return nil, err
	}
	all, err := process.MountInfo()
	if err != nil {
		return nil, err
	}
	folders := map[string]string{}
	for _, m := range all {
		if m.FSType == "tmpfs" {
			folders[m.MajorMinorVer] = m.MountPoint
		}
	}
	return folders, nil
}

// readProcess returns the name of a process's program, which is empty for a namespace's first
// process, and the process's resource use.
func readProcess(process procfs.Proc) (string, usage, error) {
	var u usage
	command, err := process.CmdLine()
	if err != nil {
		return "", u, err
	}
	name := filepath.Base(strings.Join(command[:min(1, len(command))], ""))
	status, err := process.NewStatus()
	if err != nil {
		return "", u, err
	}
	if pids := status.NSpids; len(pids) > 0 && pids[len(pids)-1] == 1 {
		name = ""
	}
	memory, err := process.ProcSMapsRollup()
	if err != nil {
		return "", u, err
	}
	stat, err := process.Stat()
	if err != nil {
		return "", u, err
	}
	io, err := process.IO()
	if err != nil {
		return "", u, err
	}
	u.PSS = float64(memory.Pss + memory.SwapPss)
	u.Anonymous = float64(memory.Anonymous + memory.SwapPss)
	u.CPU = stat.CPUTime() + float64(stat.CUTime+stat.CSTime)/clockTicks
	u.Written = float64(io.WriteBytes) - float64(io.CancelledWriteBytes)
	return name, u, nil
}
