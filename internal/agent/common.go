package agent

import (
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
	"github.com/kedge-dev/kedge/internal/node/lowpower"
	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// NewRecorder makes the flight recorder of this host. further are the curves that only a server has.
func NewRecorder(dir datadir.Dir, further ...recorder.Source) *recorder.Recorder {
	return recorder.New(recorder.Config{
		Folders: recording.Of(dir), Disk: string(dir), Sources: append([]recorder.Source{pods()}, further...),
	})
}

// pods are the pods of this node.
func pods() recorder.Source {
	rate := recorder.NewRate()
	return recorder.Source{
		Curves: []recording.Curve{{Name: "pods", Title: "pods that run"}, {Name: "starts", Title: "starts of containers, a minute"}},
		Read: func(elapsed time.Duration, values []float64) []recording.Moment {
			running, started := kubelet.Counts()
			values[0], values[1] = running, 60*rate.Of(started, elapsed)
			return nil
		},
	}
}

// AddCommon adds the components that every kedge runs, even without a node. They depend
// on nothing, so they come first. status is the component that answers `kedge status`.
func AddCommon(group *component.Group, node host.Node, settings config.Node, cluster config.Cluster, clock *pki.Clock, flight *recorder.Recorder, status component.Component) error {
	memory, err := host.Memory()
	if err != nil {
		return err
	}
	group.Add(flight)
	group.Add(lowpower.New(memory))
	group.Add(clock.Recorder())
	group.Add(host.WatchAddress(node, settings, cluster))
	group.Add(status)
	return nil
}
