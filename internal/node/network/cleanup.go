package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// Cleanup removes every interface, route, rule and file that this component and its CNI plugins have
// made. No pod may be running. confDirs are the folders that may have the CNI configuration.
// podCIDRs are the cluster's: the host-gw backend made routes to them, and the gateway's addresses are in
// them. If something cannot be removed, Cleanup goes on, and returns all errors together.
func Cleanup(ctx context.Context, confDirs []string, podCIDRs []netip.Prefix) error {
	var faults []error
	for _, dir := range confDirs {
		faults = append(faults, removeConfiguration(dir))
	}
	return errors.Join(append(faults,
		removeLinks(),
		removeRoutes(podCIDRs),
		removeSources(podCIDRs),
		removeTables(ctx,
			masqueradeTable,
			// The portmap plugin makes these: plugins/meta/portmap/portmap_nftables.go.
			//upstream:relies-on github.com/containernetworking/plugins/plugins/meta/portmap/portmap_nftables.go tableName
			table{knftables.IPv4Family, "cni_hostport"},
			table{knftables.IPv6Family, "cni_hostport"},
		),
		removeIPTables(ctx),
		os.RemoveAll(addressDir),
		removeResults(resultDir),
		os.RemoveAll(WireguardKey),
	)...)
}

// removeConfiguration removes the CNI configuration from a folder, and then the folder and its parent if they are empty.
// A folder without kedge's configuration is somebody else's.
func removeConfiguration(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, conflistName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := removeConflist(dir)
	// Both fail if there is something else in them.
	_ = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return err
}

// removeResults removes libcni's records of pods for which the plugins were never called again.
// They are files in dir/results called NETWORK-POD-INTERFACE (libcni/api.go, getCacheFilePath).
// Each pod also has one for loopback. Records of other runtimes' pods stay.
//
//upstream:relies-on github.com/containernetworking/cni/libcni/api.go CNIConfig.getCacheFilePath
func removeResults(dir string) error {
	results := filepath.Join(dir, "results")
	files, err := filepath.Glob(filepath.Join(results, networkName+"-*-*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		pod := strings.Split(strings.TrimPrefix(filepath.Base(file), networkName+"-"), "-")[0]
		loopback, err := filepath.Glob(filepath.Join(results, "cni-loopback-"+pod+"-*"))
		if err != nil {
			return err
		}
		for _, path := range append(loopback, file) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	// This removes only empty folders: others use them too.
	_ = os.Remove(results)
	_ = os.Remove(dir)
	return nil
}

// removeLinks removes flannel's devices, the bridge, the host's ends of the pods' links, and the
// bandwidth plugin's devices.
func removeLinks() error {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	bridge := 0
	for _, link := range links {
		if link.Attrs().Name == BridgeName {
			bridge = link.Attrs().Index
		}
	}
	var errs []error
	for _, link := range links {
		attrs := link.Attrs()
		switch {
		case attrs.Name == BridgeName && link.Type() == "bridge":
		case isFlannels(link):
		case bridge != 0 && attrs.MasterIndex == bridge && link.Type() == "veth":
		case strings.HasPrefix(attrs.Name, "bwp") && link.Type() == "ifb":
		default:
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove interface %s: %w", attrs.Name, err))
		}
	}
	return errors.Join(errs...)
}

// removeRoutes removes routes through gateways to parts of podCIDRs. Routes through kedge's own
// interfaces vanish with these.
func removeRoutes(podCIDRs []netip.Prefix) error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	for _, route := range routes {
		if route.Dst == nil || route.Gw == nil {
			continue
		}
		to, ok := netip.AddrFromSlice(route.Dst.IP)
		bits, _ := route.Dst.Mask.Size()
		for _, cidr := range podCIDRs {
			if ok && cidr.Contains(to.Unmap()) && bits >= cidr.Bits() {
				if err := netlink.RouteDel(&route); err != nil {
					errs = append(errs, fmt.Errorf("remove route to %s: %w", route.Dst, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}
