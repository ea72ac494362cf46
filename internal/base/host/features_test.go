package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestTries believes a try, and not the configuration. Only if this process may not try a feature, the configuration
// decides.
func TestTries(t *testing.T) {
	answers := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	tries := map[string]func(context.Context) error{
		"OVERLAY_FS": answers(errors.New("load module overlay: exit status 1")),
		"VXLAN":      answers(nil),
		"VETH":       answers(fmt.Errorf("the kernel makes no veth: %w", unix.EPERM)),
		"BRIDGE":     answers(fmt.Errorf("the kernel makes no bridge: %w", unix.EPERM)),
	}
	tree := tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "boot/config-6.1.0": "CONFIG_OVERLAY_FS=m\nCONFIG_VETH=m\n"})
	checks := checkKernel(t.Context(), tree, 2, tries)
	for name, want := range map[string]Check{
		"OVERLAY_FS": {Result: Warn, Detail: "load module overlay: exit status 1"}, "VXLAN": {Result: OK, Detail: "tried"},
		"VETH": {Result: OK, Detail: "module"}, "BRIDGE": {Result: Fail, Detail: "missing"},
	} {
		if c := byName(t, checks, name); c.Result != want.Result || c.Detail != want.Detail {
			t.Errorf("got %+v, want %s: %s", c, want.Result, want.Detail)
		}
	}
	// A kernel whose configuration is not on the machine.
	bare := checkKernel(t.Context(), t.TempDir(), 2, tries)
	if len(bare) != 3 || bare[0].Result != Warn || byName(t, bare, "OVERLAY_FS").Result != Warn || byName(t, bare, "VXLAN").Result != OK {
		t.Errorf("without the file of the kernel's configuration: got %+v. Wanted are a warning and the results of two tries", bare)
	}
}

// TestMakes makes an interface where nobody sees it, and says which kind the kernel does not know.
func TestMakes(t *testing.T) {
	if err := makes(&netlink.Bridge{})(t.Context()); errors.Is(err, unix.EPERM) {
		t.Skip("this process may not make network namespaces: run the test as root")
	} else if err != nil {
		t.Errorf("a bridge: %v", err)
	}
	if _, err := netlink.LinkByName("trial"); err == nil {
		t.Error("the interface is in the network of this process")
	}
	err := makes(&netlink.GenericLink{LinkType: "nonsense"})(t.Context())
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown kind: got %v", err)
	}
}
