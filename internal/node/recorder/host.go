package recorder

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/recording"
)

// hostSources are the curves of the machine. disk is a path on the file system whose room is shown.
func hostSources(disk string) []Source {
	proc, err := procfs.NewFS("/proc")
	if err != nil {
		return nil
	}
	return []Source{processor(proc), memory(proc), pressure(proc), room(disk), disks("/proc", "/sys"), links(linkList)}
}

// processor is the share of the time in which the processors were busy.
func processor(proc procfs.FS) Source {
	var before procfs.CPUStat
	return Source{
		Curves: []recording.Curve{{Name: "cpu", Title: "processors busy", Unit: "%"}},
		Read: func(elapsed time.Duration, values []float64) []recording.Moment {
			stat, err := proc.Stat()
			if err != nil {
				return nil
			}
			now := stat.CPUTotal
			idle := now.Idle + now.Iowait - before.Idle - before.Iowait
			busy := now.User + now.Nice + now.System + now.IRQ + now.SoftIRQ + now.Steal -
				before.User - before.Nice - before.System - before.IRQ - before.SoftIRQ - before.Steal
			before = now
			if elapsed > 0 && busy >= 0 && idle+busy > 0 {
				values[0] = min(100, 100*busy/(idle+busy))
			}
			return nil
		},
	}
}

// memory is the memory in use. It finds what the kernel has killed for memory.
func memory(proc procfs.FS) Source {
	var killed uint64
	return Source{
		Curves: []recording.Curve{{Name: "memory", Title: "memory in use", Unit: "%"}},
		Read: func(elapsed time.Duration, values []float64) (moments []recording.Moment) {
			if info, err := proc.Meminfo(); err == nil && info.MemTotal != nil && info.MemAvailable != nil && *info.MemTotal > 0 {
				values[0] = 100 * (1 - float64(*info.MemAvailable)/float64(*info.MemTotal))
			}
			now, known := killedForMemory()
			if more := now - killed; known && elapsed > 0 && now > killed {
				text := fmt.Sprintf("The kernel killed %d processes, because memory was short", more)
				if more == 1 {
					text = "The kernel killed a process, because memory was short"
				}
				moments = append(moments, recording.Moment{At: time.Now(), Kind: "memory", Text: text})
			}
			killed = now
			return moments
		},
	}
}

// killedForMemory returns how many processes the kernel has killed for memory, of the whole machine or of a cgroup.
func killedForMemory() (count uint64, known bool) {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, false
	}
	_, rest, found := strings.Cut(string(text), "\noom_kill ")
	if !found {
		return 0, false
	}
	_, err = fmt.Sscan(rest, &count)
	return count, err == nil
}

// pressure is the share of the time in which some task waited for something that was short.
func pressure(proc procfs.FS) Source {
	resources := []string{"cpu", "memory", "io"}
	before := make([]uint64, len(resources))
	return Source{
		Curves: []recording.Curve{
			{Name: "pressure-cpu", Title: "tasks wait for a processor", Unit: "%", Peak: true},
			{Name: "pressure-memory", Title: "tasks wait for memory", Unit: "%", Peak: true},
			{Name: "pressure-io", Title: "tasks wait for a disk", Unit: "%", Peak: true},
		},
		Read: func(elapsed time.Duration, values []float64) []recording.Moment {
			for i, resource := range resources {
				stats, err := proc.PSIStatsForResource(resource)
				if err != nil || stats.Some == nil {
					continue // the kernel may lack this
				}
				if now := stats.Some.Total; elapsed > 0 && now >= before[i] { // in microseconds
					values[i] = min(100, 100*float64(now-before[i])/float64(elapsed.Microseconds()))
				}
				before[i] = stats.Some.Total
			}
			return nil
		},
	}
}

// room is how full the file system of a path is, for those who are not root.
func room(path string) Source {
	return Source{
		Curves: []recording.Curve{{Name: "disk-used", Title: "file system of kedge in use", Unit: "%"}},
		Read: func(_ time.Duration, values []float64) []recording.Moment {
			var stat unix.Statfs_t
			if unix.Statfs(path, &stat) == nil {
				if used := stat.Blocks - stat.Bfree; used+stat.Bavail > 0 {
					values[0] = 100 * float64(used) / float64(used+stat.Bavail)
				}
			}
			return nil
		},
	}
}

// disks is how the machine's disks work, all together.
func disks(proc, sys string) Source {
	const sector = 512 // bytes, whatever the disk has (Documentation/admin-guide/iostats.rst of Linux)
	var before blockdevice.IOStats
	return Source{
		Curves: []recording.Curve{
			{Name: "disk-latency", Title: "answer of the disks", Unit: "ms", Peak: true},
			{Name: "disk-written", Title: "written to the disks", Unit: "B/s"},
		},
		Read: func(elapsed time.Duration, values []float64) []recording.Moment {
			fs, err := blockdevice.NewFS(proc, sys)
			if err != nil {
				return nil
			}
			all, err := fs.ProcDiskstats()
			if err != nil {
				return nil
			}
			var now blockdevice.IOStats
			for _, disk := range all {
				// Partitions and devices over others have no device: they would count twice.
				if _, err := os.Stat(filepath.Join(sys, "block", disk.DeviceName, "device")); err != nil {
					continue
				}
				now.ReadIOs += disk.ReadIOs
				now.WriteIOs += disk.WriteIOs
				now.ReadTicks += disk.ReadTicks
				now.WriteTicks += disk.WriteTicks
				now.WriteSectors += disk.WriteSectors
			}
			count, ticks := now.ReadIOs+now.WriteIOs-before.ReadIOs-before.WriteIOs, now.ReadTicks+now.WriteTicks-before.ReadTicks-before.WriteTicks
			written := now.WriteSectors - before.WriteSectors
			same := elapsed > 0 && now.ReadIOs >= before.ReadIOs && now.WriteIOs >= before.WriteIOs // no disk was taken out
			before = now
			if same {
				values[1] = sector * float64(written) / elapsed.Seconds()
			}
			if same && count > 0 {
				values[0] = float64(ticks) / float64(count)
			}
			return nil
		},
	}
}

// link is what is read of an interface of the host.
type link struct {
	up bool
	// downs is how often the interface has lost its carrier.
	downs          uint64
	received, sent uint64
}

// linkList returns the interfaces that lead out of the host.
func linkList() (map[string]link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links := map[string]link{}
	for _, l := range all {
		attributes := l.Attrs()
		// Interfaces over others would count twice. Those of pods have the bridge as their master.
		switch kind := l.Type(); {
		case kind != "device" && (kind != "veth" && kind != "macvlan" && kind != "ipvlan" || attributes.MasterIndex != 0):
			continue
		case attributes.Flags&unix.IFF_LOOPBACK != 0 || attributes.RawFlags&unix.IFF_LOOPBACK != 0 || attributes.Statistics == nil:
			continue
		}
		downs, _ := readUint(filepath.Join("/sys/class/net", attributes.Name, "carrier_down_count")) // 0 if the kernel does not count
		links[attributes.Name] = link{
			downs:    downs,
			up:       attributes.OperState != netlink.OperDown && attributes.OperState != netlink.OperLowerLayerDown && attributes.RawFlags&unix.IFF_UP != 0,
			received: attributes.Statistics.RxBytes, sent: attributes.Statistics.TxBytes,
		}
	}
	return links, nil
}

// readUint reads a number of the kernel.
func readUint(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// links is what goes over the interfaces that lead out of the host. It finds interfaces that come, go, go up or go down.
func links(list func() (map[string]link, error)) Source {
	var before map[string]link
	return Source{
		Curves: []recording.Curve{
			{Name: "network-in", Title: "received from the network", Unit: "B/s"},
			{Name: "network-out", Title: "sent to the network", Unit: "B/s"},
		},
		Read: func(elapsed time.Duration, values []float64) (moments []recording.Moment) {
			now, err := list()
			if err != nil {
				return nil
			}
			note := func(format string, name string) {
				moments = append(moments, recording.Moment{At: time.Now(), Kind: "link", Text: fmt.Sprintf(format, name)})
			}
			var received, sent uint64
			for _, name := range slices.Sorted(maps.Keys(now)) {
				l := now[name]
				was, known := before[name]
				switch {
				case before == nil:
				case !known:
					note("Interface %s is new", name)
				case l.up && !was.up:
					note("Interface %s is up", name)
				case !l.up && was.up:
					note("Interface %s is down", name)
				case l.up && l.downs > was.downs:
					note("Interface %s was down for a moment", name)
				}
				if known && l.received >= was.received && l.sent >= was.sent {
					received, sent = received+l.received-was.received, sent+l.sent-was.sent
				}
			}
			for _, name := range slices.Sorted(maps.Keys(before)) {
				if _, still := now[name]; !still {
					note("Interface %s is gone", name)
				}
			}
			if before = now; elapsed > 0 {
				values[0], values[1] = float64(received)/elapsed.Seconds(), float64(sent)/elapsed.Seconds()
			}
			return moments
		},
	}
}
