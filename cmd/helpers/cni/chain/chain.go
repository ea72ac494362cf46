// Package chain is the CNI plugin kedge-cni: the plugin bridge with host-local, and portmap and bandwidth for the pods that ask for them. In
// one process they take a quarter of the time that four processes took, and a pod waits for them when it starts. The package main
// calls it.
package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	bv "github.com/containernetworking/plugins/pkg/utils/buildversion"

	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/bandwidth"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/bridge"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/plugins/portmap"
	"github.com/kedge-dev/kedge/cmd/helpers/cni/printed"
)

// Main acts as the plugin.
func Main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del}, version.All, bv.BuildString("kedge-cni"))
}

// link is a plugin of the chain.
type link struct {
	name      string
	functions skel.CNIFuncs
	// config are the plugin's own settings.
	config map[string]json.RawMessage
}

// links returns the plugins that a pod needs, in their order. The settings of bridge are those of the plugin kedge-cni. Those of portmap are in
// the field portmap, and portmap and bandwidth get what the runtime says about the pod.
func links(config []byte) ([]link, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	var asked struct {
		RuntimeConfig struct {
			PortMappings []json.RawMessage `json:"portMappings"`
			Bandwidth    map[string]any    `json:"bandwidth"`
		} `json:"runtimeConfig"`
		PortMap map[string]json.RawMessage `json:"portmap"`
	}
	if err := json.Unmarshal(config, &asked); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	first := maps.Clone(all)
	delete(first, "portmap")
	delete(first, "runtimeConfig")
	chain := []link{{"bridge", bridge.Functions, first}}
	common := func(own map[string]json.RawMessage) map[string]json.RawMessage {
		config := map[string]json.RawMessage{"cniVersion": all["cniVersion"], "name": all["name"], "runtimeConfig": all["runtimeConfig"]}
		if previous, ok := all["prevResult"]; ok {
			config["prevResult"] = previous
		}
		maps.Copy(config, own)
		return config
	}
	if len(asked.RuntimeConfig.PortMappings) > 0 {
		chain = append(chain, link{"portmap", portmap.Functions, common(asked.PortMap)})
	}
	if len(asked.RuntimeConfig.Bandwidth) > 0 {
		chain = append(chain, link{"bandwidth", bandwidth.Functions, common(nil)})
	}
	return chain, nil
}

// arguments returns the arguments for a plugin of the chain.
func (l link) arguments(args *skel.CmdArgs) (*skel.CmdArgs, error) {
	l.config["type"], _ = json.Marshal(l.name)
	text, err := json.Marshal(l.config)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of %s: %w", l.name, err)
	}
	own := *args
	own.StdinData = text
	return &own, nil
}

// add connects a pod.
func add(args *skel.CmdArgs) error {
	chain, err := links(args.StdinData)
	if err != nil {
		return err
	}
	var result []byte
	for _, l := range chain {
		if result != nil {
			l.config["prevResult"] = result
		}
		own, err := l.arguments(args)
		if err != nil {
			return err
		}
		if result, err = printed.Result(l.functions.Add, own); err != nil {
			return fmt.Errorf("plugin %s: %w", l.name, err)
		}
	}
	_, err = os.Stdout.Write(result)
	return err
}

// del disconnects a pod, the last plugin first.
func del(args *skel.CmdArgs) error {
	chain, err := links(args.StdinData)
	if err != nil {
		return err
	}
	var faults []error
	for i := len(chain) - 1; i >= 0; i-- {
		own, err := chain[i].arguments(args)
		if err == nil {
			err = chain[i].functions.Del(own)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("plugin %s: %w", chain[i].name, err))
		}
	}
	return errors.Join(faults...)
}

// check makes sure that a pod is still connected.
func check(args *skel.CmdArgs) error {
	chain, err := links(args.StdinData)
	if err != nil {
		return err
	}
	for _, l := range chain {
		own, err := l.arguments(args)
		if err == nil {
			err = l.functions.Check(own)
		}
		if err != nil {
			return fmt.Errorf("plugin %s: %w", l.name, err)
		}
	}
	return nil
}
