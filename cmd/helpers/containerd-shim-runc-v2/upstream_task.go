// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd-shim-runc-v2/task/plugin/plugin_linux.go.

package main

import (
	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

// registerTask registers upstream's task service. In front of it is a lasting, and with cgroup version 2 a keeper too.
//
//upstream:follows github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task/plugin/plugin_linux.go init
func registerTask() {
	registry.Register(&plugin.Registration{
		Type: plugins.TTRPCPlugin, ID: "task", Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			stop, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			if cgroups.Mode() != cgroups.Unified {
				tasks, err := task.NewTaskService(ic.Context, publisher.(shim.Publisher), stop.(shutdown.Service))
				return &lasting{TTRPCTaskService: tasks}, err
			}
			k := newKeeper("/", publisher.(shim.Publisher))
			k.TTRPCTaskService, err = task.NewTaskService(ic.Context, publishing{k}, stop.(shutdown.Service))
			return &lasting{TTRPCTaskService: k}, err
		},
	})
}
