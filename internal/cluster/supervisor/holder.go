package supervisor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// stateListen is TCP_LISTEN of the kernel's include/net/tcp_states.h, as
// /proc/net/tcp prints it.
const stateListen = "0A"

// portHolder says which process listens on a TCP port, in the network
// namespace of this one: "process nginx (pid 123)". proc is /proc.
func portHolder(proc string, port int) string {
	sockets := append(listening(filepath.Join(proc, "net", "tcp"), port), listening(filepath.Join(proc, "net", "tcp6"), port)...)
	if pid, ok := owner(proc, sockets); ok {
		name, err := os.ReadFile(filepath.Join(proc, pid, "comm"))
		if err != nil {
			return fmt.Sprintf("pid %s", pid)
		}
		return fmt.Sprintf("process %s (pid %s)", strings.TrimSpace(string(name)), pid)
	}
	// The kernel itself (NFS), or a process of another PID namespace.
	return "a process that cannot be seen from here, perhaps of another container"
}

// listening returns the inodes of the sockets that listen on port, as links in
// /proc/PID/fd show them. The lines of the table are described in the kernel's
// Documentation/networking/proc_net_tcp.rst.
func listening(table string, port int) []string {
	file, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	var links []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// sl local_address rem_address st queues timer retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
			links = append(links, "socket:["+fields[9]+"]")
		}
	}
	return links
}

// owner returns the first process that has one of the sockets open.
func owner(proc string, sockets []string) (pid string, ok bool) {
	if len(sockets) == 0 {
		return "", false
	}
	descriptors, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return "", false
	}
	for _, descriptor := range descriptors {
		// A process may have ended meanwhile; then it is not the one.
		if link, err := os.Readlink(descriptor); err == nil && slices.Contains(sockets, link) {
			return filepath.Base(filepath.Dir(filepath.Dir(descriptor))), true
		}
	}
	return "", false
}
