package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/sirupsen/logrus"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// modeFile records the mode whose rules are on this host. A reboot removes both.
const modeFile = datadir.RunDir + "/proxy-mode"

// Cleanup removes all rules that a Proxy has made.
func Cleanup(ctx context.Context) error {
	var errs []error
	if _, err := exec.LookPath("nft"); err != nil {
		errs = append(errs, fmt.Errorf("remove the service proxy's nftables rules: %w", err))
	} else if err := bypass(ctx, nil); err != nil {
		errs = append(errs, err)
	} else if nftables.CleanupLeftovers(ctx) {
		errs = append(errs, errors.New("remove the service proxy's nftables rules: see the log for the errors"))
	}
	// iptables is not called without need: it would load its kernel modules and make its tables.
	if lastMode() == proxyconfig.ProxyModeIPTables && !cleanIPTables(ctx) {
		errs = append(errs, errors.New("remove the service proxy's iptables rules: see the log for the errors"))
	}
	errs = append(errs, os.RemoveAll(modeFile))
	return errors.Join(errs...)
}

// RemoveRules removes the rules that a Proxy has made since the host was booted. It leaves
// those of a kube-proxy of the user's alone.
func RemoveRules(ctx context.Context) error {
	if _, err := os.Stat(modeFile); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return Cleanup(ctx)
}

// cleanIPTables removes the rules of the iptables mode. Unlike upstream's clean-up, it also removes
// the chain that the proxier shares with the kubelet.
//
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/iptables/cleanup.go CleanupLeftovers
func cleanIPTables(ctx context.Context) (ok bool) {
	ok = !iptables.CleanupLeftovers(ctx)
	const firewall = utiliptables.Chain("KUBE-FIREWALL")
	for _, tables := range utiliptables.NewBestEffort() {
		if exists, err := tables.ChainExists(utiliptables.TableFilter, firewall); err != nil || !exists {
			continue
		}
		for _, chain := range []utiliptables.Chain{utiliptables.ChainInput, utiliptables.ChainOutput} {
			ok = tables.DeleteRule(utiliptables.TableFilter, chain, "-j", string(firewall)) == nil && ok
		}
		ok = tables.FlushChain(utiliptables.TableFilter, firewall) == nil && ok
		ok = tables.DeleteChain(utiliptables.TableFilter, firewall) == nil && ok
	}
	removeEmptyTables(ctx)
	return ok
}

// removeEmptyTables removes tables that iptables has made in nftables if nobody uses them. iptables
// itself never removes them. The older iptables, which does not use nftables, makes none.
func removeEmptyTables(ctx context.Context) {
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"filter", "nat", "mangle"} {
			listing, err := exec.CommandContext(ctx, "nft", "list", "table", family, table).Output()
			if err == nil && isEmptyTable(string(listing)) {
				// An empty table does no harm, so errors are ignored.
				_ = exec.CommandContext(ctx, "nft", "delete", "table", family, table).Run()
			}
		}
	}
}

// isEmptyTable tells whether nft's listing of a table has no rules, and only iptables' built-in chains
// with the policy accept.
func isEmptyTable(listing string) bool {
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line == "}", strings.HasPrefix(line, "#"), strings.HasPrefix(line, "table "):
		case strings.HasPrefix(line, "chain ") && builtIn[strings.Fields(line)[1]]:
		case strings.HasPrefix(line, "type ") && strings.HasSuffix(line, "policy accept;"):
		default:
			return false
		}
	}
	return true
}

// builtIn are the chains that iptables makes together with a table.
var builtIn = map[string]bool{"PREROUTING": true, "INPUT": true, "FORWARD": true, "OUTPUT": true, "POSTROUTING": true}

// removeOtherMode removes the rules of an earlier start in the other mode, and records the mode that
// is about to start.
func removeOtherMode(ctx context.Context, mode proxyconfig.ProxyMode, log *logrus.Entry) {
	last, failed := lastMode(), false
	switch {
	case last == "" || last == mode:
	case last == proxyconfig.ProxyModeIPTables:
		failed = !cleanIPTables(ctx)
	default:
		failed = nftables.CleanupLeftovers(ctx)
	}
	if failed {
		log.Warnf("Cannot remove all rules of the proxy's %s mode: reboot this host to remove them", last)
	}
	if last == mode {
		return
	}
	if err := datadir.MakePassable(datadir.RunDir); err != nil {
		log.Warnf("Cannot record the proxy's mode: %v", err)
	} else if err := os.WriteFile(modeFile, []byte(mode), 0o600); err != nil {
		log.Warnf("Cannot record the proxy's mode: %v", err)
	}
}

// lastMode returns the recorded mode, or "".
func lastMode() proxyconfig.ProxyMode {
	content, err := os.ReadFile(modeFile)
	if err != nil {
		return ""
	}
	return proxyconfig.ProxyMode(content)
}
