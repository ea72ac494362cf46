package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	shimName = "containerd-shim-runc-v2"
	// clockTicks is USER_HZ, which is 100 on every Linux.
	clockTicks = 100
	sectorSize = 512
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

// snapshot is what a host's processes take, pods not included.
type snapshot struct {
	// Installation is everything but Shims.
	Installation, Shims usage
	// Programs has the same by name of the program.
	Programs map[string]usage
	// DiskWritten is bytes written to the machine's disk, by whomever.
	DiskWritten float64
}

// takeSnapshot reads /proc. A host's own processes are those in its PID
// namespace: containers are in others.
func takeSnapshot(h *harness.Host) (snapshot, error) {
	s := snapshot{Programs: map[string]usage{}}
	namespace, err := h.Command(context.Background(), "readlink", "/proc/self/ns/pid").Output()
	if err != nil {
		return s, err
	}
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return s, err
	}
	for _, folder := range folders {
		link, err := os.Readlink(folder + "/ns/pid")
		if err != nil || link != strings.TrimSpace(string(namespace)) {
			continue
		}
		name, u, err := readProcess(folder)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended
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
		case shimName:
			s.Shims.add(u)
		default:
			s.Installation.add(u)
		}
		program := s.Programs[name]
		program.add(u)
		s.Programs[name] = program
	}
	s.DiskWritten, err = diskWritten(h.Path("/var/lib/kedge"))
	return s, err
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
	u.Anonymous = kibibytes(memory["Anonymous"])

	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return "", u, err
	}
	// proc(5): after the name in brackets comes field 3; utime, stime, cutime
	// and cstime are 14 to 17.
	after := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(after) < 15 {
		return "", u, fmt.Errorf("read %s/stat: too short", folder)
	}
	for _, field := range after[11:15] {
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

// diskWritten returns the bytes written to the disk that path is on, or 0 if
// the kernel does not say.
func diskWritten(path string) (float64, error) {
	var info syscall.Stat_t
	if err := syscall.Stat(path, &info); err != nil {
		return 0, fmt.Errorf("find disk: %w", err)
	}
	major, minor := unix.Major(info.Dev), unix.Minor(info.Dev)
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, nil // a file system of no one disk
	}
	// Documentation/block/stat.rst: the seventh is sectors written.
	fields := strings.Fields(string(text))
	if len(fields) < 7 {
		return 0, nil
	}
	sectors, err := strconv.ParseFloat(fields[6], 64)
	return sectors * sectorSize, err
}
