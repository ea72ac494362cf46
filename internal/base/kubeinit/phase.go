package kubeinit

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
)

// Phase is the stage of the process's life. Upstream's parts are made to start one after
// the other and to end with their processes. So while kedge starts and stops, they log
// errors that mean nothing. Phase makes them debug messages.
type Phase struct {
	state atomic.Int32
	// last is the last message of a library before it ended the process.
	last atomic.Value
	// ended is done, with the cause, when a library has ended the process.
	ended context.Context
	end   context.CancelCauseFunc
}

func newPhase() *Phase {
	p := &Phase{}
	p.ended, p.end = context.WithCancelCause(context.Background())
	return p
}

// Watch returns a context that ends with ctx, or when one of Kubernetes's libraries ends
// the process. fault returns why the library did so. It returns nil if ctx ended first,
// because a failure while kedge stops does not count.
func (p *Phase) Watch(ctx context.Context) (watched context.Context, fault func() error) {
	watched, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(p.ended, func() { cancel(context.Cause(p.ended)) })
	return watched, func() error {
		if cause := context.Cause(watched); cause == context.Cause(p.ended) {
			return cause
		}
		return nil
	}
}

// exit takes the place of os.Exit. Kubernetes's libraries end the process through klog,
// for example the API server when one of its hooks fails
// (k8s.io/apiserver/pkg/server/hooks.go). Then kedge stops in order and says why. Only
// the calling goroutine ends here.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/hooks.go runPostStartHook
//upstream:relies-on k8s.io/klog/v2/exit.go FlushAndExit OsExit
func (p *Phase) exit(status int) {
	why, _ := p.last.Load().(string)
	why = cmp.Or(why, "the log has its last error")
	p.end(fmt.Errorf("a Kubernetes library ended the process with status %d: %s", status, why))
	runtime.Goexit()
}

const (
	starting int32 = iota
	running
	stopping
)

// Ready says that the node is ready. From now on, every error counts.
func (p *Phase) Ready() { p.state.Store(running) }

// Stopping says that the parts are being stopped. An error may now come from another part
// having stopped already.
func (p *Phase) Stopping() { p.state.Store(stopping) }

// expects tells whether an error is routine or belongs to the phase. err may be nil.
func (p *Phase) expects(message string, err error) bool {
	switch p.state.Load() {
	case starting:
		if slices.Contains(startingErrors, message) {
			return true
		}
	case stopping:
		return true
	}
	return isRoutine(message, err, callers())
}

// startingErrors are messages that upstream logs as errors in every normal start. The
// list must not cover all errors of a start: the kubelet ends the process after some of
// them.
var startingErrors = []string{
	// pkg/kubelet, until the node is registered and containers were listed once
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go Kubelet.fastNodeStatusUpdate
	"Error getting the current node from lister",
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/eviction/eviction_manager.go managerImpl.synchronize
	"Eviction manager: failed to get summary stats",
	// pkg/kubelet/stats, if cAdvisor has found a cgroup and has not yet looked at it
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/cadvisor_stats_provider.go getCadvisorContainerInfo
	"Partial failure issuing cadvisor.ContainerInfoV2",
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/util/nodelease.go SetNodeOwnerFunc
	"Failed to get node when trying to set owner ref to the node lease",
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.syncLoop Kubelet.fastStaticPodsRegistration
	"Skipping pod synchronization",
	"Unable to register mirror pod because node is not registered yet",
	// pkg/controlplane/controller/kubernetesservice, even if there was none
	//upstream:relies-on k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice/controller.go Controller.Start
	"Found stale data, removed previous endpoints on kubernetes service, apiserver didn't exit successfully previously",
	// pkg/controller/serviceaccount, until that ConfigMap exists
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/serviceaccount/legacy_serviceaccount_token_cleaner.go LegacySATokenCleaner.evaluateSATokens
	"Getting lastest possible tracked_since time",
	// pkg/proxy/nftables, before it has made its table
	//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go Proxier.syncProxyRules
	"Failed to list existing chains",
	"Failed to list existing sets",
}
