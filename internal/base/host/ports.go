package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Port is a port that kedge listens on.
type Port struct {
	Network string // tcp or udp
	Address string // host:port; without a host all addresses
	Use     string
	// Change is the setting that chooses another port, empty if there is none.
	Change string
	// Remote says that other hosts must reach the port.
	Remote bool
}

// portPatience is how long CheckPorts waits for a port that is taken: a process that
// was killed keeps its ports until the kernel has closed them.
const portPatience = time.Second

// CheckPorts returns an error that names every port another process has, and that
// process. Call it before anything listens.
func CheckPorts(ctx context.Context, ports []Port) error {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var faults []error
		for _, port := range ports {
			// The component that listens reports all other errors.
			if !errors.Is(tryListen(ctx, port), syscall.EADDRINUSE) {
				continue
			}
			if o := portOwner("/", port); !o.kernel {
				number, _, _ := strings.Cut(port.number(), "/")
				faults = append(faults, fmt.Errorf("port %s is taken by %s, and kedge needs %s for %s. %s", number, o, port, port.Use, port.mend()))
			}
		}
		if len(faults) == 0 || time.Since(began) > portPatience || ctx.Err() != nil {
			return errors.Join(faults...)
		}
	}
}

// String returns the port as PORT/NETWORK with its address, if it has one.
func (p Port) String() string { return strings.TrimPrefix(p.Address, ":") + "/" + p.Network }

// number returns PORT/NETWORK, as firewalls write it.
func (p Port) number() string {
	_, port, _ := net.SplitHostPort(p.Address)
	return port + "/" + p.Network
}

// mend says what to do about a port that is taken.
func (p Port) mend() string {
	const stop = "Stop that program; `ss -lntup` shows who listens"
	if p.Change == "" {
		return stop
	}
	return stop + ". Or choose another port with " + p.Change
}

// checkPorts tries the ports. Those that the process kedge has, which is 0 if kedge does
// not run, are as they should be.
func checkPorts(ctx context.Context, root string, ports []Port, kedge int) []Check {
	var checks []Check
	for _, port := range ports {
		c := Check{Group: "ports", Name: port.String(), Result: OK, Detail: port.Use}
		if taken := tryListen(ctx, port); taken != nil {
			switch o := portOwner(root, port); {
			case o.kernel:
				c.Detail += ": an interface of this host has it"
			case kedge != 0 && o.pid == kedge:
				c.Detail += fmt.Sprintf(": kedge itself has it (process %d)", kedge)
			case errors.Is(taken, syscall.EADDRINUSE):
				c.Result, c.Cost = Fail, fmt.Sprintf("the port is taken by %s. %s", o, port.mend())
			default:
				c.Result, c.Cost = Fail, taken.Error()
			}
		}
		checks = append(checks, c)
	}
	return checks
}

func tryListen(ctx context.Context, port Port) error {
	var config net.ListenConfig
	if port.Network == "udp" {
		conn, err := config.ListenPacket(ctx, port.Network, port.Address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	l, err := config.Listen(ctx, port.Network, port.Address)
	if err != nil {
		return err
	}
	return l.Close()
}

// owner is who has a port: a process, or the kernel, as of VXLAN, whose interfaces stay
// when kedge stops. It is the zero owner if that cannot be seen.
type owner struct {
	pid    int
	name   string
	kernel bool
}

// String names the owner.
func (o owner) String() string {
	if o.kernel {
		return "the kernel"
	}
	if o.pid == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (process %d)", o.name, o.pid)
}

// PortOwner names the process that has a taken port, such as "nginx (process 12)".
func PortOwner(port Port) string { return portOwner("/", port).String() }

// TakenBy names who keeps others from listening on a port, or returns "" if the port is
// free.
func TakenBy(ctx context.Context, port Port) string {
	if !errors.Is(tryListen(ctx, port), syscall.EADDRINUSE) {
		return ""
	}
	return PortOwner(port)
}

// portOwner finds the owner of a taken port in the files of /proc below root.
func portOwner(root string, port Port) owner {
	host, number, err := net.SplitHostPort(port.Address)
	if err != nil {
		return owner{}
	}
	wanted, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return owner{}
	}
	address, _ := netip.ParseAddr(host) // The zero Addr is for all.
	inodes := map[string]bool{}
	for _, table := range []string{port.Network, port.Network + "6"} {
		text, err := os.ReadFile(filepath.Join(root, "proc/net", table))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// The columns are those of net/ipv4/tcp_ipv4.c, get_tcp4_sock.
			words := strings.Fields(line)
			if len(words) < 10 || port.Network == "tcp" && words[3] != "0A" {
				continue
			}
			local, hex, _ := strings.Cut(words[1], ":")
			n, err := strconv.ParseUint(hex, 16, 16)
			if err != nil || n != wanted || !overlaps(address, local) {
				continue
			}
			if words[9] == "0" {
				return owner{kernel: true}
			}
			inodes["socket:["+words[9]+"]"] = true
		}
	}
	o := processWith(root, inodes)
	// The kernel's own sockets have inodes, too, which no process has open. Root sees the
	// files of all processes.
	if o.pid == 0 && port.Network == "udp" && len(inodes) > 0 && os.Geteuid() == 0 {
		o.kernel = true
	}
	return o
}

// overlaps tells whether a socket at an address of /proc/net/tcp, in the kernel's
// hexadecimal words, keeps another from listening at address.
func overlaps(address netip.Addr, local string) bool {
	if !address.IsValid() || address.IsUnspecified() || strings.Trim(local, "0") == "" {
		return true
	}
	var hex strings.Builder
	bytes := address.Unmap().AsSlice()
	for i := 0; i < len(bytes); i += 4 { // Little-endian words, on all machines that kedge runs on.
		fmt.Fprintf(&hex, "%02X%02X%02X%02X", bytes[i+3], bytes[i+2], bytes[i+1], bytes[i])
	}
	return strings.HasSuffix(local, hex.String())
}

// processWith finds the process that has one of the sockets open.
func processWith(root string, inodes map[string]bool) owner {
	if len(inodes) == 0 {
		return owner{}
	}
	links, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*/fd/*")) // Only a wrong pattern is an error.
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || !inodes[target] {
			continue
		}
		folder := filepath.Dir(filepath.Dir(link))
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join(folder, "comm"))
		if err != nil {
			continue
		}
		return owner{pid: pid, name: strings.TrimSpace(string(name))}
	}
	return owner{}
}
