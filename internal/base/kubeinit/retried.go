package kubeinit

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"regexp"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The level error is for faults of kedge and of its host. Upstream also logs errors that are none: its loops
// compare what is with what should be, and a loop that fails at one object tries again. These functions
// find these errors, by these properties:
//
//   - The value of the error says that somebody else was faster, or has given up: isAnswer.
//   - A file or a cgroup of a pod is not there: isGone. The pod has ended, and another loop has removed what it had. If it
//     has not ended, an Event of the pod tells why it does not start.
//   - A request was out of time, as on a busy machine: isLate. The sender gets that error, and sends the request again.
//     If the machine stays too slow, the datastore warns, and the node is no longer Ready.
//   - The API refuses something because a user has ended or limited it: limits.
//   - No server answers, as while one starts. The status of a node reports that: isUnreachable.
//   - A worker of a queue has logged it, or a reflector: fromWorker. Upstream's workers put an object back into
//     their queue if its turn has failed, and a reflector lists and watches again.
//   - The message says that there will be another attempt: isRetried.
//   - It has ended the stream of a user, who gets the error: isStream.
//
// The Events and the status of such an object tell the user what is wrong. The table routines has errors
// without these properties.

// isAnswer tells whether an error says that its caller was late or gave up, which is no fault of either side: a
// conflict with another writer, an object that is gone or there already, a request that nobody waits for any
// more, or a container that is gone.
func isAnswer(err error) bool {
	if err == nil {
		return false
	}
	code := status.Code(err)
	return errors.Is(err, context.Canceled) || code == codes.NotFound || code == codes.Canceled ||
		apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || isNamedNotFound(err) || isClientGone(err) ||
		answers.MatchString(err.Error())
}

// isNamedNotFound tells whether the API has no object of some name. An answer without a name says that the API
// does not have the kind, or the path.
func isNamedNotFound(err error) bool {
	var answer apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &answer) && answer.Status().Details != nil && answer.Status().Details.Name != ""
}

// isClientGone tells whether an error says that there is nobody who reads an answer.
func isClientGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, http.ErrHandlerTimeout) || errors.Is(err, http.ErrAbortHandler)
}

// answers finds the errors of isAnswer in a text. Upstream makes texts of many of them, by %v.
//
//upstream:relies-on k8s.io/apimachinery/pkg/api/errors/errors.go NewNotFound NewAlreadyExists NewConflict
//upstream:relies-on google.golang.org/grpc/internal/status/status.go Error.Error
//upstream:relies-on std/context/context.go Canceled
//upstream:relies-on std/net/http/h2_bundle.go http2errStreamClosed http2errClientDisconnected http2errClosedBody http2StreamError.Error
//upstream:relies-on std/net/http/server.go ErrHandlerTimeout
var answers = regexp.MustCompile(`Operation cannot be fulfilled on |[a-z.]+ "[^"]*" (not found|already exists)|` +
	`context canceled|code = (NotFound|Canceled) |http2: stream closed|stream error: stream ID \d+; CANCEL|client disconnected|body closed by handler|http: Handler timeout`)

// isGone tells whether a text says that a file or a cgroup of a pod is not there, or any cgroup that cAdvisor begins to watch.
func isGone(text string) bool { return gone.MatchString(text) }

// gone has the folder that the kubelet gives each pod, and its name for the cgroup of all pods.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubeletconfig/defaults.go DefaultKubeletPodsDirName
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/node_container_manager_linux.go defaultNodeAllocatableCgroupName
//upstream:relies-on github.com/google/cadvisor/lib/container/raw/watcher.go rawContainerWatcher.watchDirectory
var gone = regexp.MustCompile(`(/var/lib/kubelet/pods/|/kubepods|inotify_add_watch /sys/fs/cgroup/)[^:]*: no such file or directory`)

// isLate tells whether an error says that a request had no answer within its time. If the message says that there will
// be no other attempt, the error is not routine.
func isLate(err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded || late.MatchString(err.Error())
}

// late finds the errors of isLate in a text.
//
//upstream:relies-on google.golang.org/grpc/internal/status/status.go Error.Error
//upstream:relies-on std/context/context.go deadlineExceededError.Error
//upstream:relies-on std/net/http/client.go cancelTimerBody.Read Client.do
//upstream:relies-on k8s.io/apimachinery/pkg/api/errors/errors.go NewTimeoutError
var late = regexp.MustCompile(`context deadline exceeded|code = DeadlineExceeded |Client\.Timeout (exceeded|or context cancellation)|` +
	`unable to return a response in the time allotted`)

// limits finds the API's refusals that are the work of users: a namespace is being deleted, a quota is used up,
// or a node asks for what a pod uses that is no longer there.
//
//upstream:relies-on k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go Lifecycle.Admit
//upstream:relies-on k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go CheckRequest
//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/node/node_authorizer.go NodeAuthorizer.authorize
var limits = regexp.MustCompile(`because it is being terminated|: exceeded quota: |: no relationship found between node `)

// isUnreachable tells whether a request has reached no server, or got no whole answer, or only the answer that the server
// cannot answer yet. kedge itself warns of that, and a node is no longer Ready if it lasts. A server that answers with a
// wrong certificate is not meant.
func isUnreachable(err error) bool { return err != nil && unreachable.MatchString(err.Error()) }

// unreachable has the name by which nodes ask servers (APIName in package pki) with what package net/http then says, and
// what the API's clients say.
//
//upstream:relies-on std/net/url/url.go Error.Error
//upstream:relies-on std/net/net.go OpError.Error
//upstream:relies-on std/net/http/h2_bundle.go http2StreamError.Error
//upstream:relies-on k8s.io/client-go/rest/request.go Request.transformResponse
//upstream:relies-on k8s.io/apimachinery/pkg/api/errors/errors.go NewGenericServerResponse
var unreachable = regexp.MustCompile(`"https://kubernetes\.default\.svc/[^"]*": ((dial|read|write) tcp |(unexpected )?EOF|` +
	`net/http: TLS handshake timeout|http2: client connection lost|stream error: stream ID \d+; INTERNAL_ERROR)|` +
	`unexpected error when reading response body\. Please retry|the server is currently unable to handle the request`)

// isRetried tells whether a message says that there will be another attempt.
func isRetried(message string) bool { return again.MatchString(message) && !never.MatchString(message) }

// again are upstream's words for another attempt, and never are its words for giving up.
var (
	again = regexp.MustCompile(`(?i)re-?queu|re-?tr(y|ies)|\btry again`)
	never = regexp.MustCompile(`(?i)not (be )?re-?tr|after (multiple|re-?try|several)|drop`)
)

// fromWorker tells whether a worker of a queue, or a reflector, is among the functions that called the logger.
// Upstream's controllers name their workers as k8s.io/client-go/examples/workqueue/main.go does. fromWorker returns
// false if there will be no other attempt: if the method handleErr drops an object after many attempts, or if the
// worker has panicked.
func fromWorker(functions iter.Seq[string]) bool {
	found := false
	for function := range functions {
		if dropping.MatchString(function) {
			return false
		}
		found = found || worker.MatchString(function)
	}
	return found
}

//upstream:relies-on k8s.io/kubernetes/pkg/controller/replicaset/replica_set.go ReplicaSetController.processNextWorkItem
//upstream:relies-on k8s.io/kubernetes/pkg/controller/deployment/deployment_controller.go DeploymentController.handleErr
//upstream:relies-on k8s.io/kubernetes/pkg/controller/volume/persistentvolume/pv_controller_base.go PersistentVolumeController.claimWorker
//upstream:relies-on k8s.io/client-go/tools/cache/reflector.go Reflector.RunWithContext
//upstream:relies-on k8s.io/apimachinery/pkg/util/runtime/runtime.go logPanic
var (
	worker   = regexp.MustCompile(`\.(processNext\w*|\w*[wW]orker|\(\*Reflector\)\.Run\w*)(\.func[\d.]+)*(\[\.\.\.\])?$`)
	dropping = regexp.MustCompile(`\)\.handle\w*Err$|/runtime\.logPanic$`)
)

// isStream tells whether a stream of kubectl exec, attach or port-forward has logged an error. The user gets it.
//
//upstream:relies-on k8s.io/cri-streaming/pkg/streaming/remotecommand/attach.go ServeAttach
//upstream:relies-on k8s.io/cri-streaming/pkg/streaming/remotecommand/exec.go ServeExec
func isStream(functions iter.Seq[string]) bool {
	for function := range functions {
		if strings.HasPrefix(function, "k8s.io/cri-streaming/pkg/streaming/") {
			return true
		}
	}
	return false
}
