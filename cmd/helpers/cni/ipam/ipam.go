// Package ipam takes the place of upstream's package of this name in the plugin bridge (see scripts/cniplugins). It calls the plugin
// host-local in this process, where upstream would run it as a program.
package ipam

import (
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	upstream "github.com/containernetworking/plugins/pkg/ipam"

	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/hostlocal"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/printed"
)

// hostLocal is the only plugin that is called in this process.
const hostLocal = "host-local"

// args are what a plugin is given. The variables are those of the CNI specification.
func args(config []byte) *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: os.Getenv("CNI_CONTAINERID"),
		Netns:       os.Getenv("CNI_NETNS"),
		IfName:      os.Getenv("CNI_IFNAME"),
		Args:        os.Getenv("CNI_ARGS"),
		Path:        os.Getenv("CNI_PATH"),
		StdinData:   config,
	}
}

// ExecAdd returns addresses for a pod.
func ExecAdd(plugin string, config []byte) (types.Result, error) {
	if plugin != hostLocal {
		return upstream.ExecAdd(plugin, config)
	}
	text, err := printed.Result(hostlocal.Functions.Add, args(config))
	if err != nil {
		return nil, err
	}
	return create.CreateFromBytes(text)
}

// ExecCheck makes sure that a pod still has its addresses.
func ExecCheck(plugin string, config []byte) error {
	if plugin != hostLocal {
		return upstream.ExecCheck(plugin, config)
	}
	return hostlocal.Functions.Check(args(config))
}

// ExecDel gives the addresses of a pod back.
func ExecDel(plugin string, config []byte) error {
	if plugin != hostLocal {
		return upstream.ExecDel(plugin, config)
	}
	return hostlocal.Functions.Del(args(config))
}

// ExecStatus tells whether there may be addresses.
func ExecStatus(plugin string, config []byte) error { return upstream.ExecStatus(plugin, config) }

// ConfigureIface gives an interface its addresses and routes.
func ConfigureIface(name string, result *current.Result) error {
	return upstream.ConfigureIface(name, result)
}
