// Package kubeinit sets what Kubernetes's libraries keep process-wide: where and how much
// they log, and what they must not do by themselves because several of upstream's
// programs share this process. The package has no variables of its own: its state is in
// what Setup returns. agent.SetUp calls Setup once, before any part starts.
//
// Setup sets these variables of upstream's:
//
//	klog's logger, its verbosity and klog.OsExit   until the process ends
//	logsapi.ReapplyHandling                        the parts apply their logging options one after another
//	rest's default warning handler                 upstream's programs silence it too
//	scheme.Scheme                                  gets the kinds of snapshots
package kubeinit

import (
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/go-logr/logr"
	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// Setup prepares the process for Kubernetes's libraries. A panic in one of
// their goroutines still ends the process: that is upstream's default and a
// restart by the service manager is the honest answer to it. The returned
// Phase is to be told when the node is ready and when it begins to stop, and tells
// when a library ends the process.
func Setup(log config.Log) (*Phase, *Verbosity, error) {
	verbosity := &Verbosity{}
	if err := verbosity.Set(log.Verbosity); err != nil {
		return nil, nil, err
	}
	bridge := newBridge(logrus.StandardLogger(), verbosity)
	klog.OsExit = bridge.phase.exit
	klog.SetLoggerWithOptions(logr.New(bridge), klog.ContextualLogger(true), klog.WriteKlogBuffer(bridge.writeLine))

	// Kubelet and the other parts each apply their logging options; only the
	// first may, by default (component-base/logs/api/v1/options.go).
	//upstream:relies-on k8s.io/component-base/logs/api/v1/options.go apply
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	// Warnings of the API about deprecated versions are for a client's user.
	// Upstream's programs silence their own (kube-apiserver/app/server.go).
	//upstream:relies-on k8s.io/kubernetes/cmd/kube-apiserver/app/server.go NewAPIServerCommand
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	// Events of snapshots, and references to them, are made by their kinds
	// (external-snapshotter/cmd/snapshot-controller/main.go). Now, because the scheme
	// has no lock.
	//upstream:relies-on github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller/main.go main
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return nil, nil, fmt.Errorf("add kinds of snapshots: %w", err)
	}
	return bridge.phase, verbosity, nil
}

// Verbosity is how much of what Kubernetes's code says is logged. klog's own verbosity is
// another one while containerd is made.
type Verbosity struct{ level atomic.Int64 }

// Restore sets klog's verbosity to what Set was told last, after somebody else has
// changed it.
func (v *Verbosity) Restore() { _ = v.Set(int(v.level.Load())) } // which klog took before

// Set sets klog's verbosity, at any time.
func (v *Verbosity) Set(level int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(level)); err != nil {
		return fmt.Errorf("set verbosity of Kubernetes's logs: %w", err)
	}
	v.level.Store(int64(level))
	return nil
}
