package machines

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

// emulated runs a machine with the kernel of its distribution in qemu, which emulates the processor:
// 20 to 60 times slower than this machine.
type emulated struct{}

// emulatedInterface is what the machine's kernel calls its first network interface with net.ifnames=0.
const emulatedInterface = "eth0"

// treeTag is what the machine calls the source tree that qemu gives it.
const treeTag = "tree"

// emulators are, for each architecture by Debian's name, the package and the command of the emulator, and
// how the kernel calls its serial line.
var emulators = map[string]struct {
	pack, console string
	command       []string
}{
	"amd64": {"qemu-system-x86", "ttyS0", []string{"qemu-system-x86_64", "-machine", "q35", "-cpu", "max,la57=off"}},
	"arm64": {"qemu-system-arm", "ttyAMA0", []string{"qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"}},
	// This kernel finds no PCI bus beyond 4 GiB.
	"armhf": {"qemu-system-arm", "ttyAMA0", []string{"qemu-system-arm", "-machine", "virt,highmem=off"}},
}

func (k emulated) prepare(t *testing.T, l *life) {
	t.Helper()
	harness.Need(t, emulators[l.debianArchitecture()].pack, "qemu-utils")
	l.base = l.file(t, l.image())
	l.link(t, emulatedInterface, cable, "tuntap add mode tap name "+cable)
	l.run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", l.base, filepath.Join(l.folder, "changes"))
}

func (k emulated) command(l *life) *harness.Cmd {
	emulator := emulators[l.debianArchitecture()]
	words := append(emulator.command[1:len(emulator.command):len(emulator.command)],
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", strconv.Itoa(l.memory), "-display", "none", "-no-reboot",
		"-kernel", l.base+".kernel", "-initrd", l.base+".initrd",
		"-append", "root=/dev/vda rw net.ifnames=0 console="+emulator.console+" "+strings.Join(l.parameters, " "),
		"-drive", "if=none,id=disk,cache=unsafe,file="+filepath.Join(l.folder, "changes"), "-device", "virtio-blk-pci,drive=disk",
		"-netdev", "tap,id=net,script=no,downscript=no,ifname="+cable, "-device", "virtio-net-pci,netdev=net,romfile=,mac="+ethernet(l.address),
		"-virtfs", "local,path="+l.tree+",mount_tag="+treeTag+",security_model=none", "-serial", "stdio", "-monitor", "none")
	return l.host.Command(l.ctx, emulator.command[0], words...)
}

// ethernet returns an Ethernet address that belongs to an IPv4 address. Without it, all machines in qemu have the same one.
func ethernet(address string) string {
	ip := netip.MustParseAddr(address).As4()
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", ip[1], ip[2], ip[3])
}

func (k emulated) booted(*testing.T, *life) {}

func (k emulated) slow() int { return 10 }

func (k emulated) mount(*life) string {
	return "mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 " + treeTag + " " + sourceTree
}
