// Follows k8s.io/kubectl v0.37.2, pkg/cmd/exec/exec.go.

package console

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a program in a container until it ends or ctx does. It returns an error of k8s.io/client-go/util/exec for an
// exit status other than 0.
type Exec func(ctx context.Context, namespace, pod string, options *corev1.PodExecOptions, streams remotecommand.StreamOptions) error

// NewExec returns how to run a program as the user of a kubeconfig. Core calls the API's group "" with it. A proxy that does
// not know websockets gets SPDY, as with kubectl.
//
//upstream:follows k8s.io/kubectl/pkg/cmd/exec/exec.go createExecutor
func NewExec(cfg *rest.Config, core rest.Interface) Exec {
	return func(ctx context.Context, namespace, pod string, options *corev1.PodExecOptions, streams remotecommand.StreamOptions) error {
		to := core.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").VersionedParams(options, scheme.ParameterCodec).URL()
		old, err := remotecommand.NewSPDYExecutor(cfg, "POST", to)
		if err != nil {
			return fmt.Errorf("prepare exec: %w", err)
		}
		executor, err := remotecommand.NewWebSocketExecutor(cfg, "GET", to.String())
		if err != nil {
			return fmt.Errorf("prepare exec: %w", err)
		}
		executor, err = remotecommand.NewFallbackExecutor(executor, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
		if err != nil {
			return fmt.Errorf("prepare exec: %w", err)
		}
		// The streams log errors after the end of a program. No user can mend these, so they are left out.
		return executor.StreamWithContext(klog.NewContext(ctx, logr.Discard()), streams)
	}
}
