package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// hostInterface is the host's name for its link to the network.
const hostInterface = "eth0"

// Host is what kedge takes for a machine: it has its own network, host name, processes, /run, /etc and
// state folders.
type Host struct {
	Name string
	// Address and Address6 are the host's addresses on the network.
	Address, Address6 netip.Addr

	t       T
	network *Network
	number  int
	link    link
	dir     string
	cgroup  string
	// device is the block device of the host's disk, or empty.
	device string
	// root is the folder with the host's system, or empty if it is the machine's.
	root   string
	memory *MemoryCgroup
	// live is the host since it was booted, or nil.
	live *hosts.Host
	// booted is true if the host has run before.
	booted bool
	// up is held by users of live's thread, and by a reboot.
	up sync.RWMutex

	mutex       sync.Mutex
	environment []string
	// kedge is the path of the executable that Kedge runs.
	kedge string
}

// Install makes the host run another executable of kedge from now on. Running daemons keep theirs until
// they are started again.
func (h *Host) Install(kedge string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.kedge = kedge
}

// InstalledPath is where install.sh puts kedge.
const InstalledPath = "/usr/local/bin/kedge"

// InstallCopy is Install of a copy at InstalledPath, which kedge can replace.
func (h *Host) InstallCopy(kedge string) {
	h.t.Helper()
	h.CopyProgram(kedge, InstalledPath)
	h.Install(InstalledPath)
}

// CopyProgram gives the host a copy of a program of the machine.
func (h *Host) CopyProgram(from, to string) {
	h.t.Helper()
	to = h.Path(to)
	err := CopyFile(from, to)
	if err == nil {
		err = os.Chmod(to, 0o755)
	}
	if err != nil {
		h.t.Fatalf("give %s a copy of %s: %v", h.Name, from, err)
	}
}

// Setenv sets a variable for commands that are made from now on.
func (h *Host) Setenv(name, value string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.environment = append(h.environment, name+"="+value)
}

// NewHost adds a host to the network. It is removed when the test ends.
func (n *Network) NewHost(t T, name string) *Host {
	t.Helper()
	return n.newHost(t, name, "", "")
}

func (n *Network) newHost(t T, name, device, root string) *Host {
	t.Helper()
	n.hosts++
	h := &Host{
		Name:     name,
		Address:  n.lan.Subnet.Address(n.hosts),
		Address6: n.lan.Subnet.Address6(n.hosts),
		t:        t,
		network:  n,
		number:   n.hosts,
		dir:      filepath.Join(n.dir, name),
		cgroup:   n.name + "/" + name,
		device:   device,
		root:     root,
		kedge:    os.Getenv(binaryVariable),
	}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		t.Fatalf("make host: %v", err)
	}
	t.Cleanup(h.close)
	if err := h.boot(); err != nil {
		t.Fatalf("make host %s: %v", name, err)
	}
	return h
}

// boot starts the host with the contents of its folder.
func (h *Host) boot() (err error) {
	if err := hosts.MakeCgroup(h.cgroup); err != nil {
		return err
	}
	if h.live, err = hosts.Start(h.setup(h.booted)); err != nil {
		return err
	}
	h.booted = true
	return h.network.lan.Attach(h.number, h.live.NS(), hostInterface, true)
}

// Reboot ends everything on the host at once, as a power cut does, and boots the host again. Only the
// contents of its disk stay. The results of Path change. The host must not have a memory limit.
func (h *Host) Reboot() {
	h.t.Helper()
	if h.device != "" {
		// While it is open, the loop device does not disappear with the host's mounts.
		device, err := os.Open(h.device)
		if err != nil {
			h.t.Fatalf("reboot host %s: %v", h.Name, err)
		}
		defer device.Close()
	}
	h.up.Lock()
	defer h.up.Unlock()
	h.halt()
	err := errors.Join(h.network.lan.Detach(h.number), hosts.RemoveCgroups(h.cgroup))
	if err == nil {
		err = h.boot()
	}
	if err != nil {
		h.t.Fatalf("reboot host %s: %v", h.Name, err)
	}
}

// LoseDisk ends everything on the host at once, and boots it with an empty disk. It is then another machine with the same name and
// address. The results of Path change. The host must have neither a disk of its own nor a memory limit.
func (h *Host) LoseDisk() {
	h.t.Helper()
	h.up.Lock()
	defer h.up.Unlock()
	h.halt()
	err := errors.Join(h.network.lan.Detach(h.number), hosts.RemoveCgroups(h.cgroup), os.RemoveAll(h.dir), os.Mkdir(h.dir, 0o755))
	if err == nil {
		h.booted = false
		err = h.boot()
	}
	if err != nil {
		h.t.Fatalf("replace host %s: %v", h.Name, err)
	}
}

// do runs f on the thread that is in the host. f must not start goroutines that do anything on the
// host, because they would run outside.
func (h *Host) do(f func()) {
	h.up.RLock()
	defer h.up.RUnlock()
	_ = h.live.Do(f) // between boot and halt, it does not fail
}

// halt kills everything on the host.
func (h *Host) halt() {
	if h.live != nil {
		h.live.Halt()
	}
}

// close kills everything on the host and removes it.
func (h *Host) close() {
	h.halt()
	if err := h.mendLink(); err != nil {
		h.t.Logf("remove host %s: %v", h.Name, err)
	}
	if h.memory != nil && h.memory.v2 != nil {
		h.memory.v2.Close()
	}
	if err := hosts.RemoveCgroups(h.cgroup); err != nil {
		h.t.Logf("remove host %s: %v", h.Name, err)
	}
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Logf("remove host %s: %v", h.Name, err)
	}
}

// Path returns the path by which the test can reach the file path of the host.
func (h *Host) Path(path string) string { return h.live.Path(path) }

// FirstProcess returns the ID of the host's first process on the machine.
func (h *Host) FirstProcess() int { return h.live.FirstProcess() }

// Scratch makes a folder on the machine that is removed together with the host.
func (h *Host) Scratch(name string) string {
	h.t.Helper()
	folder := filepath.Join(h.dir, "scratch", name)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		h.t.Fatalf("make folder for host %s: %v", h.Name, err)
	}
	return folder
}

// Mount mounts a file system on a folder of the host.
func (h *Host) Mount(source, target, kind, data string) (err error) {
	h.do(func() { err = hosts.Mount{Source: source, Target: target, Kind: kind, Data: data}.Do() })
	return err
}

// Cgroup returns the path, absolute within each hierarchy, of the cgroup for the host's pods.
func (h *Host) Cgroup() string { return "/" + h.cgroup }

// WriteFile writes a file of the host and creates its folder.
func (h *Host) WriteFile(path, text string) {
	h.t.Helper()
	err := os.MkdirAll(filepath.Dir(h.Path(path)), 0o755)
	if err == nil {
		err = os.WriteFile(h.Path(path), []byte(text), 0o644)
	}
	if err != nil {
		h.t.Fatalf("write %s on %s: %v", path, h.Name, err)
	}
}

// DialContext connects from the host. The address must have an IP address: a name would be resolved on
// the machine.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return h.live.DialContext(ctx, network, address)
}

// Get sends a request to an HTTP server from the host, and returns the whole answer with its headers.
// The address is as for DialContext.
func (h *Host) Get(address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := h.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: test\r\n\r\n")
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// Cmd is an exec.Cmd whose process starts on a host.
type Cmd struct {
	*hosts.Cmd
	host *Host
}

// Command returns a command that runs on the host. Its working folder is /, and its environment is the
// test's without the variables that kedge reads.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := &Cmd{h.live.Command(ctx, name, args...), h}
	c.Env = []string{"HOME=/root"}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "KEDGE_") && !strings.HasPrefix(variable, "HOME=") && !strings.HasPrefix(variable, "KUBECONFIG=") {
			c.Env = append(c.Env, variable)
		}
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	c.Env = append(c.Env, h.environment...)
	return c
}

// Kedge returns a command that runs kedge on the host.
func (h *Host) Kedge(ctx context.Context, args ...string) *Cmd {
	h.mutex.Lock()
	kedge := h.kedge
	h.mutex.Unlock()
	return h.Command(ctx, kedge, args...)
}

// Start starts the command.
func (c *Cmd) Start() error {
	if m := c.host.memory; m != nil && m.v2 != nil {
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(m.v2.Fd())}
	}
	c.host.up.RLock()
	defer c.host.up.RUnlock()
	return c.Cmd.Start()
}

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// CombinedOutput runs the command and returns its output.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var output strings.Builder
	c.Stdout, c.Stderr = &output, &output
	err := c.Run()
	return []byte(output.String()), err
}

// Output runs the command and returns its standard output. The error has its standard error.
func (c *Cmd) Output() ([]byte, error) {
	var output, faults strings.Builder
	c.Stdout, c.Stderr = &output, &faults
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.TrimSpace(faults.String()))
	}
	return []byte(output.String()), err
}
