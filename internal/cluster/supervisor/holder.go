package supervisor

import (
	"fmt"
	"slices"

	"github.com/prometheus/procfs"
)

// stateListen is TCP_LISTEN of the kernel's include/net/tcp_states.h.
const stateListen = 0x0a

// portHolder returns which process in this network namespace listens on a TCP port:
// "process nginx (pid 123)". proc is the path of /proc.
func portHolder(proc string, port int) string {
	if process, ok := listener(proc, port); ok {
		name, err := process.Comm()
		if err != nil {
			return fmt.Sprintf("pid %d", process.PID)
		}
		return fmt.Sprintf("process %s (pid %d)", name, process.PID)
	}
	// The kernel itself (NFS), or a process in another PID namespace.
	return "a process that kedge cannot see, perhaps one in another container"
}

// listener returns the first process that has a socket open that listens on port. It
// skips processes that it cannot read, because a process may have ended meanwhile.
func listener(proc string, port int) (procfs.Proc, bool) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return procfs.Proc{}, false
	}
	v4, _ := fs.NetTCP()
	v6, _ := fs.NetTCP6()
	var sockets []string
	for _, socket := range slices.Concat(v4, v6) {
		if socket.St == stateListen && socket.LocalPort == uint64(port) {
			sockets = append(sockets, fmt.Sprintf("socket:[%d]", socket.Inode))
		}
	}
	if len(sockets) == 0 {
		return procfs.Proc{}, false
	}
	processes, _ := fs.AllProcs()
	i := slices.IndexFunc(processes, func(process procfs.Proc) bool {
		open, _ := process.FileDescriptorTargets()
		return slices.ContainsFunc(open, func(target string) bool { return slices.Contains(sockets, target) })
	})
	if i < 0 {
		return procfs.Proc{}, false
	}
	return processes[i], true
}
