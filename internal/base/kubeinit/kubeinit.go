// Package kubeinit sets what Kubernetes's libraries keep for the whole process: where and
// how much they log. It also switches off what they must not do by themselves, because
// several of upstream's programs share this process. The package has no variables of its
// own: Setup returns its state. agent.SetUp calls Setup once, before any part starts.
//
// Setup sets these variables of upstream's packages:
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

// Setup prepares the process for Kubernetes's libraries. A panic in one of their
// goroutines still ends the process, as upstream does by default, and the service manager
// restarts it. The caller must tell the returned Phase when the node is ready and when it
// begins to stop. The Phase reports when a library ends the process.
func Setup(log config.Log) (*Phase, *Verbosity, error) {
	verbosity := &Verbosity{}
	if err := verbosity.Set(log.Verbosity); err != nil {
		return nil, nil, err
	}
	bridge := newBridge(logrus.StandardLogger(), verbosity)
	klog.OsExit = bridge.phase.exit
	klog.SetLoggerWithOptions(logr.New(bridge), klog.ContextualLogger(true), klog.WriteKlogBuffer(bridge.writeLine))

	// Kubelet and the other parts each apply their logging options. By default, only the
	// first of them may (component-base/logs/api/v1/options.go).
	//upstream:relies-on k8s.io/component-base/logs/api/v1/options.go apply
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	// The API's warnings about deprecated versions are for the users of clients.
	// Upstream's programs silence their own warnings too (kube-apiserver/app/server.go).
	//upstream:relies-on k8s.io/kubernetes/cmd/kube-apiserver/app/server.go NewAPIServerCommand
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	// Events of snapshots and references to them need their kinds in the scheme
	// (external-snapshotter/cmd/snapshot-controller/main.go). They are added now, because
	// the scheme has no lock.
	//upstream:relies-on github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller/main.go main
	if err := snapshotscheme.AddToScheme(scheme.Scheme); err != nil {
		return nil, nil, fmt.Errorf("add kinds of snapshots: %w", err)
	}
	return bridge.phase, verbosity, nil
}

// Verbosity is how much Kubernetes's code logs. klog's own verbosity differs while
// containerd is made.
type Verbosity struct{ level atomic.Int64 }

// Restore sets klog's verbosity to the last value of Set, after other code has changed
// it.
func (v *Verbosity) Restore() { _ = v.Set(int(v.level.Load())) } // the same value has succeeded before

// Set sets klog's verbosity. It may be called at any time.
func (v *Verbosity) Set(level int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(level)); err != nil {
		return fmt.Errorf("set verbosity of Kubernetes's logs: %w", err)
	}
	v.level.Store(int64(level))
	return nil
}
