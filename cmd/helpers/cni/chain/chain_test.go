package chain

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
)

// configuration is what a runtime gives to the plugin for a pod. The values are a folder, the backend of portmap, what the pod asks for, and
// the result of an earlier call.
const configuration = `{
	"cniVersion": "1.0.0", "name": "kedge", "type": "kedge-cni", "capabilities": {"portMappings": true, "bandwidth": true},
	"bridge": "cni0", "isDefaultGateway": true, "forceAddress": true, "hairpinMode": true, "mtu": 1450,
	"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.42.0.0/24"}]]},
	"portmap": {"backend": %q, "snat": true},
	"runtimeConfig": {%s}%s
}`

// node is a host with a pod.
type node struct {
	t         *testing.T
	here, pod ns.NetNS
	addresses string
	// previous is the field for the result of an earlier call.
	previous string
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	n := &node{t: t, addresses: t.TempDir()}
	for _, made := range []*ns.NetNS{&n.here, &n.pod} {
		var err error
		if *made, err = testutils.NewNS(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			(*made).Close()
			if err := testutils.UnmountNS(*made); err != nil {
				t.Error(err)
			}
		})
	}
	return n
}

// call calls the plugin on the host for the pod.
func (n *node) call(function func(*skel.CmdArgs) error, backend, asks string) (result *current.Result, err error) {
	n.t.Helper()
	args := &skel.CmdArgs{ContainerID: "pod-1", Netns: n.pod.Path(), IfName: "eth0", StdinData: fmt.Appendf(nil, configuration, n.addresses, backend, asks, n.previous)}
	_ = n.here.Do(func(ns.NetNS) error {
		if fmt.Sprintf("%p", function) == fmt.Sprintf("%p", add) {
			answer, _, fault := testutils.CmdAddWithArgs(args, func() error { return add(args) })
			if err = fault; err == nil {
				result, err = current.NewResultFromResult(answer)
			}
			return nil
		}
		err = testutils.CmdDelWithArgs(args, func() error { return function(args) })
		return nil
	})
	return result, err
}

// rules returns what nftables of the host has, and the discipline of the pod's interface there.
func (n *node) rules(device string) (text, discipline string) {
	n.t.Helper()
	err := n.here.Do(func(ns.NetNS) error {
		output, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		text = string(output)
		if link, err := netlink.LinkByName(device); err == nil {
			if all, err := netlink.QdiscList(link); err == nil && len(all) > 0 {
				discipline = all[0].Type()
			}
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return text, discipline
}

func TestChain(t *testing.T) {
	const port = `"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]`
	for name, test := range map[string]struct {
		asks       string
		rule       string
		discipline string
	}{
		"a pod that asks for nothing": {"", "", "noqueue"},
		"a port of the host":          {port, "dport 8080", "noqueue"},
		"a bandwidth":                 {`"bandwidth": {"ingressRate": 1000000, "ingressBurst": 1000000}`, "", "tbf"},
		"both":                        {port + `, "bandwidth": {"ingressRate": 1000000, "ingressBurst": 1000000}`, "dport 8080", "tbf"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			result, err := n.call(add, "nftables", test.asks)
			if err != nil {
				t.Fatal(err)
			}
			if len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.42.0.2/24" || len(result.Interfaces) < 3 {
				t.Errorf("the result is %+v", result)
			}
			if err := n.pod.Do(func(ns.NetNS) error {
				link, err := netlink.LinkByName("eth0")
				if err == nil && link.Attrs().MTU != 1450 {
					err = fmt.Errorf("the MTU is %d", link.Attrs().MTU)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			known, err := json.Marshal(result)
			if err != nil {
				t.Fatal(err)
			}
			n.previous = `, "prevResult": ` + string(known)
			text, discipline := n.rules(result.Interfaces[1].Name)
			if test.rule == "" && strings.Contains(text, "dport 8080") || !strings.Contains(text, test.rule) || discipline != test.discipline {
				t.Errorf("rules %q and discipline %s", text, discipline)
			}
			if _, err := n.call(check, "nftables", test.asks); err != nil {
				t.Errorf("check: %v", err)
			}
			for range 2 { // a runtime may ask twice
				if _, err := n.call(del, "nftables", test.asks); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
			n.empty()
		})
	}
}

// empty makes sure that nothing of the pod is left.
func (n *node) empty() {
	n.t.Helper()
	if text, _ := n.rules("none"); strings.Contains(text, "dport 8080") {
		n.t.Errorf("rules are left: %s", text)
	}
	taken, err := filepath.Glob(filepath.Join(n.addresses, "kedge", "10.*"))
	if err != nil || len(taken) > 0 {
		n.t.Errorf("addresses are left: %v, %v", taken, err)
	}
	if err := n.pod.Do(func(ns.NetNS) error {
		_, err := netlink.LinkByName("eth0")
		return err
	}); err == nil {
		n.t.Error("the interface is left")
	}
}

// TestFaultInTheChain makes sure that the runtime can take back what the first plugins did.
func TestFaultInTheChain(t *testing.T) {
	n := newNode(t)
	const port = `"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]`
	if _, err := n.call(add, "smoke-signals", port); err == nil || !strings.HasPrefix(err.Error(), "plugin portmap: ") {
		t.Errorf("an unknown backend: %v", err)
	}
	if _, err := n.call(del, "nftables", port); err != nil {
		t.Error(err)
	}
	n.empty()
	if _, err := n.call(add, "nftables", `"portMappings": 7`); err == nil || !strings.HasPrefix(err.Error(), "read the configuration") {
		t.Errorf("a broken configuration: %v", err)
	}
}
