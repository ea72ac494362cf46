package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Where a host's nameservers are written: by whoever configures the host, and
// by systemd-resolved, which puts only its own 127.0.0.53 into the first.
const (
	etcResolvConf      = "/etc/resolv.conf"
	resolvedResolvConf = "/run/systemd/resolve/resolv.conf"
)

// publicNameserver is used when the host names none that a pod can reach. It
// is the one k3s falls back to.
const publicNameserver = "8.8.8.8"

// ResolvConf returns the path of a resolv.conf that also holds inside a pod,
// where the host's loopback addresses mean the pod itself: the configured one
// if any, else the host's own if all its nameservers can be reached from a pod,
// else the one systemd-resolved keeps beside it, else one written to
// fallbackDir, with the search domains and options of the host's and either
// those of its nameservers that can be reached or a public one.
//
// It is for the kubelet and so for pods with dnsPolicy Default; a resolver in
// the host's network, like the cluster DNS, may use loopback nameservers too.
func ResolvConf(configured string, fallbackDir string) (path string, err error) {
	return pickResolvConf(configured, etcResolvConf, resolvedResolvConf, fallbackDir)
}

func pickResolvConf(configured, etc, resolved, fallbackDir string) (string, error) {
	if configured != "" {
		if _, err := datadir.ReadText(configured); err != nil {
			return "", fmt.Errorf("read the file given by --resolv-conf: %w", err)
		}
		return configured, nil
	}
	host, err := readResolvConf(etc)
	if err != nil {
		return "", err
	}
	if len(host.reachable) > 0 && !host.unreachable {
		return etc, nil
	}
	if len(host.reachable) == 0 {
		beside, err := readResolvConf(resolved)
		if err != nil {
			return "", err
		}
		if len(beside.reachable) > 0 && !beside.unreachable {
			return resolved, nil
		}
		host.reachable = []string{publicNameserver}
	}
	path := filepath.Join(fallbackDir, "resolv.conf")
	if err := writeResolvConf(path, host); err != nil {
		return "", err
	}
	return path, nil
}

// nameservers is what matters of a resolv.conf.
type nameservers struct {
	reachable   []string // addresses that mean the same inside a pod
	unreachable bool     // whether there are others
	rest        []string // the lines that are not about nameservers
}

// readResolvConf reads the file at path. A missing one is an empty one, as for
// the C library.
func readResolvConf(path string) (nameservers, error) {
	var n nameservers
	content, err := datadir.ReadText(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, fmt.Errorf("read nameservers: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.ContainsRune("#;", rune(line[0])) {
			continue
		}
		if fields[0] != "nameserver" {
			n.rest = append(n.rest, line)
			continue
		}
		if len(fields) > 1 && reachableFromPod(fields[1]) {
			n.reachable = append(n.reachable, fields[1])
		} else {
			n.unreachable = true
		}
	}
	if err := lines.Err(); err != nil {
		return n, fmt.Errorf("read nameservers from %s: %w", path, err)
	}
	return n, nil
}

// reachableFromPod tells whether address means the same in a pod's network as
// in the host's. IPv4's link-local addresses do: some clouds serve DNS on one,
// and what leaves a pod is masqueraded.
func reachableFromPod(address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	a = a.Unmap()
	return a.Zone() == "" && (a.IsGlobalUnicast() || a.Is4() && a.IsLinkLocalUnicast())
}

func writeResolvConf(path string, n nameservers) error {
	var content strings.Builder
	content.WriteString("# Written by kedge for pods: the host's nameservers cannot be reached from them.\n")
	for _, line := range n.rest {
		fmt.Fprintln(&content, line)
	}
	for _, address := range n.reachable {
		fmt.Fprintln(&content, "nameserver", address)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder for resolv.conf: %w", err)
	}
	// Pods read it while they start: it must never be seen half-written.
	return datadir.WriteFile(path, []byte(content.String()), 0o644)
}
