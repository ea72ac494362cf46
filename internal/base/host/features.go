package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tries try features of the kernel, by the names of their options. These features are often modules. A
// configuration does not say whether a module is on the machine and may be loaded. A try returns nil if
// the feature is there. The kernel loads the feature's module for it.
var tries = map[string]func(context.Context) error{
	"OVERLAY_FS":       loads("overlay"),
	"BRIDGE_NETFILTER": loads("br_netfilter"),
	"NF_CONNTRACK":     loads("nf_conntrack"),
	"VETH":             makes(&netlink.Veth{PeerName: "peer"}),
	"BRIDGE":           makes(&netlink.Bridge{}),
	"VXLAN":            makes(&netlink.Vxlan{VxlanId: 1}),
	"WIREGUARD":        makes(&netlink.Wireguard{}),
}

// loads returns a try that loads one of modules, unless the kernel already has what it brings.
func loads(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		m := modules[slices.IndexFunc(modules, func(m module) bool { return m.name == name })]
		if m.present("/") {
			return nil
		}
		err := modprobe(ctx, name)
		switch {
		case m.present("/"):
			return nil
		case err == nil:
			return fmt.Errorf("the kernel has no %s, although it has loaded the module", name)
		}
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) // modprobe may say two lines
	}
}

// makes returns a try that makes a network interface in a network namespace of its own, which ends with the
// try.
func makes(link netlink.Link) func(context.Context) error {
	return func(context.Context) error {
		link.Attrs().Name = "trial"
		if err := elsewhere(func() error { return netlink.LinkAdd(link) }); err != nil {
			return fmt.Errorf("the kernel makes no %s: %w", link.Type(), err)
		}
		return nil
	}
}

// elsewhere calls do in a new network namespace.
func elsewhere(do func() error) error {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = do()
			// The thread has to come back: it may be the first one, whose files in /proc are those of the process.
			// If it cannot, it stays locked, and ends with this goroutine.
			if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
				result <- errors.Join(err, back)
				return
			}
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}
