package kubeinit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
)

// The functions of upstream that call the logger in the cases below.
var (
	replicaSet = []string{
		"k8s.io/apimachinery/pkg/util/runtime.logError", "k8s.io/apimachinery/pkg/util/runtime.handleError", "k8s.io/apimachinery/pkg/util/runtime.HandleError",
		"k8s.io/kubernetes/pkg/controller/replicaset.(*ReplicaSetController).processNextWorkItem",
		"k8s.io/kubernetes/pkg/controller/replicaset.(*ReplicaSetController).worker", "runtime.goexit",
	}
	deployment = []string{
		"k8s.io/apimachinery/pkg/util/runtime.handleError", "k8s.io/kubernetes/pkg/controller/deployment.(*DeploymentController).handleErr",
		"k8s.io/kubernetes/pkg/controller/deployment.(*DeploymentController).processNextWorkItem", "runtime.goexit",
	}
	claims = []string{
		"k8s.io/kubernetes/pkg/controller/volume/persistentvolume.(*PersistentVolumeController).updateClaim",
		"k8s.io/kubernetes/pkg/controller/volume/persistentvolume.(*PersistentVolumeController).claimWorker.func1",
		"k8s.io/kubernetes/pkg/controller/volume/persistentvolume.(*PersistentVolumeController).claimWorker", "runtime.goexit",
	}
	panicked = []string{
		"k8s.io/apimachinery/pkg/util/runtime.logPanic", "k8s.io/apimachinery/pkg/util/runtime.handleCrash", "runtime.gopanic",
		"k8s.io/kubernetes/pkg/controller/replicaset.(*ReplicaSetController).processNextWorkItem", "runtime.goexit",
	}
	generic = []string{
		"k8s.io/apimachinery/pkg/util/runtime.HandleErrorWithContext", "k8s.io/kubernetes/pkg/controller/certificates.(*Controller[...]).processNextWorkItem[...]", "runtime.goexit",
	}
	reflector = []string{
		"k8s.io/apimachinery/pkg/util/runtime.HandleErrorWithContext", "k8s.io/client-go/tools/cache.DefaultWatchErrorHandler",
		"k8s.io/client-go/tools/cache.(*Reflector).RunWithContext.func1", "k8s.io/apimachinery/pkg/util/wait.BackoffUntilWithContext", "runtime.goexit",
	}
	attach = []string{
		"k8s.io/apimachinery/pkg/util/runtime.HandleError", "k8s.io/cri-streaming/pkg/streaming/remotecommand.ServeAttach", "net/http.(*conn).serve", "runtime.goexit",
	}
	kubelet = []string{"k8s.io/kubernetes/pkg/kubelet.(*podWorkers).podWorkerLoop", "k8s.io/kubernetes/pkg/kubelet.(*podWorkers).UpdatePod.func1", "runtime.goexit"}
)

var pods = schema.GroupResource{Resource: "pods"}

func TestIsRoutine(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, "data", errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	for name, test := range map[string]struct {
		message   string
		err       error
		functions []string
		want      bool
	}{
		// Others were faster, or gave up.
		"a conflict":         {"Failed to update claim", conflict, nil, true},
		"a wrapped conflict": {"Failed to update claim", fmt.Errorf("save claim: %w", conflict), nil, true},
		"a conflict as text": {"Unhandled Error", fmt.Errorf("default/data failed with: %v", conflict), nil, true},
		"a driver without a server": {
			"kubernetes.io/csi: registrationHandler.RegisterPlugin failed to unregister plugin due to previous error: ...",
			errors.New("kubernetes.io/csi: error uninstalling CSI driver from CSINode object error updating CSINode: timed out waiting for the condition"), nil, true},
		"a pod that has no node":         {"Failed to get node", apierrors.NewNotFound(schema.GroupResource{Resource: "node"}, ""), nil, true},
		"an object that is gone":         {"Failed to update status for pod", apierrors.NewNotFound(pods, "a"), nil, true},
		"gone, as text":                  {`Couldn't get secret default/none: secret "none" not found`, nil, nil, true},
		"an object that is there":        {"Unhandled Error", fmt.Errorf("create PVC a-data: %v", apierrors.NewAlreadyExists(schema.GroupResource{Resource: "persistentvolumeclaims"}, "a-data")), nil, true},
		"a container that is gone":       {"Failed to remove container", status.Error(codes.NotFound, "an error occurred when try to find container \"1\": not found"), nil, true},
		"of a sandbox, as text":          {"PodSandboxStatus of sandbox for pod", errors.New("rpc error: code = NotFound desc = an error occurred when try to find sandbox: not found"), nil, true},
		"a client that gave up":          {"Unhandled Error", fmt.Errorf("apiserver received an error that is not an metav1.Status: %#+v: %v", context.Canceled, context.Canceled), nil, true},
		"a request that ended":           {"Failed to watch", context.Canceled, nil, true},
		"a call that ended":              {"Failed to watch", status.Error(codes.Canceled, "context canceled"), nil, true},
		"a connection that closed":       {"Unhandled Error", fmt.Errorf("apiserver was unable to write a JSON response: %w", fmt.Errorf("write tcp: %w", syscall.EPIPE)), nil, true},
		"a stream that closed":           {"Unhandled Error", errors.New("apiserver was unable to write a JSON response: http2: stream closed"), nil, true},
		"a request that the client ends": {"Unhandled Error", errors.New("apiserver received an error that is not an metav1.Status: http2.StreamError{StreamID:0xaa7, Code:0x8, Cause:error(nil)}: stream error: stream ID 2727; CANCEL"), nil, true},
		"a container that has ended":     {"Attach container from runtime service failed", status.Error(codes.Unknown, "container is in CONTAINER_EXITED state"), kubelet, true},
		"an answer too late, as text":    {"Unhandled Error", errors.New(`apiserver received an error that is not an metav1.Status: &errors.errorString{s:"http: Handler timeout"}: http: Handler timeout`), nil, true},
		"a request that is cut off":      {"Unhandled Error", errors.New(`apiserver received an error that is not an metav1.Status: &errors.errorString{s:"body closed by handler"}: body closed by handler`), nil, true},
		"an answer too late":             {"Unhandled Error", fmt.Errorf("apiserver was unable to write a fallback JSON response: %w", http.ErrHandlerTimeout), nil, true},

		// There will be another attempt.
		"a StatefulSet":            {"Error syncing StatefulSet, requeuing", errors.New("read version: 615 is not as new as written version: 619"), nil, true},
		"a budget":                 {"Error syncing PodDisruptionBudget, requeuing", errors.New("connection refused"), nil, true},
		"a node":                   {"Error updating node status, will retry", context.DeadlineExceeded, nil, true},
		"the health of a Node":     {"Update health of Node from Controller error, Skipping - no pods will be evicted", errors.New("read version: 615 is not as new as written version: 619 for group resource nodes"), nil, true},
		"new kinds of objects":     {"Unhandled Error", errors.New("timed out waiting for dependency graph builder sync during GC sync"), nil, true},
		"a ReplicaSet":             {"Unhandled Error", errors.New(`sync "default/a" failed with read version: 615 is not as new as written version: 619`), replicaSet, true},
		"without a ServiceAccount": {"Unhandled Error", errors.New(`sync "default/early-1" failed with pods "early-1-" is forbidden: error looking up service account default/late: serviceaccount "late" not found`), replicaSet, true},
		"beyond a quota":           {"Unhandled Error", errors.New(`sync "tight/two-1" failed with pods "two-1-x" is forbidden: exceeded quota: one, requested: pods=1, used: pods=1, limited: pods=1`), replicaSet, true},
		"a claim":                  {"Could not sync claim", errors.New("timeout"), claims, true},
		"a server that restarts":   {"Failed to watch", errors.New("the server is currently unable to handle the request (get configmaps) - error from a previous attempt: read tcp 172.31.0.2:44442->172.31.0.1:6443: read: connection reset by peer"), reflector, true},
		"a generic function":       {"Sync failed", errors.New("timeout"), generic, true},

		// Users have ended or limited something.
		"a namespace that ends":      {"Server rejected event (will not retry!)", errors.New(`events.events.k8s.io "two.18ec" is forbidden: unable to create new content in namespace tight because it is being terminated`), nil, true},
		"its tokens":                 {`Error preparing data for projected volume kube-api-access-l2cl5 for pod tight/two: failed to fetch token: serviceaccounts "default" is forbidden: unable to create new content in namespace tight because it is being terminated`, errors.New(`serviceaccounts "default" is forbidden: unable to create new content in namespace tight because it is being terminated`), nil, true},
		"a Job beyond a quota":       {"Unhandled Error", errors.New(`pods "three-zr6hg" is forbidden: exceeded quota: one, requested: pods=1, used: pods=1, limited: pods=1`), nil, true},
		"what no pod uses any more":  {"Failed to watch", errors.New(`failed to list *v1.ConfigMap: configmaps "kube-root-ca.crt" is forbidden: User "system:node:a" cannot list resource "configmaps" in API group "" in the namespace "tight": node: no relationship found between node 'a' and this object`), reflector, true},
		"a pod that nobody has more": {"Failed to get status for pod", errors.New(`pods "a" is forbidden: User "system:node:n" cannot get resource "pods" in API group "" in the namespace "default": no relationship found between node 'n' and this object`), nil, true},
		// No server answers.
		"a server that is down":      {"Failed to get status for pod", errors.New(`Get "https://kubernetes.default.svc/api/v1/namespaces/default/pods/set-1": dial tcp 172.31.0.1:6443: connect: connection refused`), nil, true},
		"a server that ends":         {"Failed to get status for pod", errors.New(`Get "https://kubernetes.default.svc/api/v1/namespaces/default/pods/set-1": EOF`), nil, true},
		"a server with another name": {"Failed to get status for pod", errors.New(`Get "https://kubernetes.default.svc/api/v1/namespaces/default/pods/set-1": tls: failed to verify certificate: x509: certificate signed by unknown authority`), nil, false},
		"a server that starts":       {"Server rejected event (will not retry!)", errors.New("the server is currently unable to handle the request (post events)"), nil, true},
		"half an answer of a server": {"Authorization error", errors.New("unexpected error when reading response body. Please retry. Original error: in-process client: handler aborted the response: unexpected EOF"), nil, true},
		"an answer that breaks off":  {"Failed to get status for pod", errors.New(`Get "https://kubernetes.default.svc/api/v1/namespaces/default/pods/set-1": stream error: stream ID 41; INTERNAL_ERROR; received from peer`), nil, true},
		// Files and cgroups of a pod that has ended.
		"a folder that is gone":     {"Could not read directory", errors.New("readdirent /var/lib/kubelet/pods/1/volumes: no such file or directory"), kubelet, true},
		"volumes that are gone":     {"Pod found, but error occurred during checking mounted volumes from disk", errors.New("readdirent /var/lib/kubelet/pods/1/volumes: no such file or directory"), kubelet, true},
		"a volume that is gone":     {"kubernetes.io/csi: mounter.SetUpAt failed to save volume info data: kubernetes.io/csi: failed to save volume data file /var/lib/kubelet/pods/9af3/volumes/kubernetes.io~csi/pvc-bf/vol_data.json: open /var/lib/kubelet/pods/9af3/volumes/kubernetes.io~csi/pvc-bf/vol_data.json: no such file or directory", nil, kubelet, true},
		"a cgroup that is gone":     {`Failed to watch directory "/sys/fs/cgroup/cpu/kubepods/besteffort/podf5bd": inotify_add_watch /sys/fs/cgroup/cpu/kubepods/besteffort/podf5bd: no such file or directory`, nil, nil, true},
		"a service that has ended":  {`Failed to watch directory "/sys/fs/cgroup/pids/own.service": inotify_add_watch /sys/fs/cgroup/pids/own.service: no such file or directory`, nil, nil, true},
		"a client that is gone":     {"Error proxying data from client to backend", errors.New("readfrom tcp 127.0.0.1:45038->127.0.0.1:10010: websocket: close 1006 (abnormal closure): unexpected EOF"), nil, true},
		"an Event at a stop":        {"Unable to write event (broadcaster is shut down)", nil, nil, true},
		"a limit that is gone":      {"failed to read memory cgroup limits for the pod", errors.New("open /sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/memory.max: no such file or directory"), kubelet, true},
		"a file of kedge's own":     {"Failed", errors.New("open /var/lib/kedge/agent/etc/containerd/config.toml: no such file or directory"), kubelet, false},
		"a cgroup that is not made": {"Failed", errors.New("open /sys/fs/cgroup/kubepods.slice/memory.max: permission denied"), kubelet, false},
		// A request was out of time.
		"a deadline":                    {"Failed", context.DeadlineExceeded, kubelet, true},
		"a deadline that was the last":  {"Failed to update node PodCIDR after multiple attempts", context.DeadlineExceeded, nil, false},
		"a container that ends slowly":  {"Kill container failed", status.Error(codes.DeadlineExceeded, "context deadline exceeded"), kubelet, true},
		"a deadline, as text":           {"StopPodSandbox from runtime service failed", errors.New("rpc error: code = DeadlineExceeded desc = stop sandbox"), kubelet, true},
		"a client's deadline":           {"Failed", errors.New("net/http: request canceled (Client.Timeout or context cancellation while reading body)"), nil, true},
		"a server's deadline":           {"Unhandled Error", errors.New("failed to fetch openapi paths: the server was unable to return a response in the time allotted, but may still be processing the request"), nil, true},
		"the deadline of somebody else": {"Failed", errors.New("the certificate's time is exceeded"), nil, false},
		// Errors of kedge and of its host.
		"dropped":                   {"Unhandled Error", errors.New("timeout"), deployment, false},
		"never again":               {"Work item failed, will not retry", errors.New("timeout"), nil, false},
		"given up":                  {"Failed to update node PodCIDR after multiple attempts", errors.New("timeout"), nil, false},
		"a panic":                   {"Observed a panic", nil, panicked, false},
		"a right that is missing":   {"Unhandled Error", errors.New(`sync failed: pods is forbidden: User "system:serviceaccount:kube-system:replicaset-controller" cannot list resource "pods" in API group "" at the cluster scope`), replicaSet, false},
		"a watch without a right":   {"Failed to watch", errors.New(`failed to list *v1.Pod: pods is forbidden: User "system:kedge:dns" cannot list resource "pods" in API group "" at the cluster scope`), reflector, false},
		"a watch without a name":    {"Failed to watch", errors.New("failed to list *v1.Pod: Unauthorized"), reflector, false},
		"a watch of a stranger":     {"Failed to watch", errors.New(`failed to list *v1.Pod: Get "https://kubernetes.default.svc/api/v1/pods": tls: failed to verify certificate: x509: certificate signed by unknown authority`), reflector, false},
		"a kind that is missing":    {"Unhandled Error", &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{}}}, nil, false},
		"a program that is missing": {"Failed to start", errors.New(`exec: "mkfs.ext4": executable file not found in $PATH`), nil, false},
		"a refused connection":      {"Unhandled Error", fmt.Errorf("dial: %w", syscall.ECONNREFUSED), nil, false},
		"a full disk":               {"Failed to write", syscall.ENOSPC, nil, false},
		"an invalid object":         {"Unhandled Error", apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", field.ErrorList{field.Required(field.NewPath("spec"), "")}), nil, false},
		"no error":                  {"Failed", nil, kubelet, false},

		// The table.
		"a claim that is not bound":   {"Unable to attach or mount volumes for pod; skipping pod", errors.New("unmounted volumes=[data kube-api-access-dwdbh], unattached volumes=[], failed to process volumes=[data]: error processing PVC default/claim-0: PVC is not bound"), kubelet, true},
		"a container that two remove": {"RemoveContainer from runtime service failed", status.Error(codes.Unknown, `failed to set removing state for container "aa12": container is already in removing state`), kubelet, true},
		"a container that stays":      {"RemoveContainer from runtime service failed", status.Error(codes.Unknown, "no space left on device"), kubelet, false},
		"a command that ended":        {"Unhandled Error", errors.New("error attaching to container: container is in CONTAINER_EXITED state"), attach, true},
		"a NodePort after adoption":   {"Unhandled Error", errors.New("the node port 30080 for service web/apps is not allocated; repairing"), nil, true},
		"an address after adoption":   {"Unhandled Error", errors.New("the ClusterIP [IPv4]: 10.43.0.7 for Service apps/web is not allocated; repairing"), nil, true},
		"a port of two Services":      {"Unhandled Error", errors.New("the node port 30080 for service web/apps was assigned to multiple services; please recreate"), nil, false},
		"image GC at the start":       {"Image garbage collection failed once. Stats initialization may not have completed yet", errors.New("get image disk stats: no imagefs label"), nil, true},
		"device plugin ends":          {"ListAndWatch ended unexpectedly for device plugin", errors.New("rpc error: code = Unavailable desc = error reading from server: EOF"), nil, true},
		"slow eviction":               {"Eviction manager: pod failed to evict", errors.New("timeout waiting to kill pod"), nil, true},
		"eviction that fails":         {"Eviction manager: pod failed to evict", errors.New("input/output error"), nil, false},
		"cgroup of an ended pod":      {"failed to read memory cgroup config for the pod", errors.New("failed to read memory.max for cgroup /a: read /a/memory.max: no such device"), nil, true},
		"cgroup that cannot be read":  {"failed to read memory cgroup config for the pod", errors.New("read /a/memory.max: input/output error"), nil, false},
		"image GC that fails":         {"Image garbage collection failed multiple times in a row", errors.New("get image disk stats: no imagefs label"), nil, false},
		"an early ephemeral volume":   {"Error processing volume", errors.New("error processing PVC default/a-data: PVC was not created for pod"), kubelet, true},
		"a slow kubelet":              {"Housekeeping took longer than expected", errors.New("housekeeping took too long"), kubelet, true},
		"a node that is slow to tell": {"Unable to update node status", errors.New("update node status exceeds retry count"), kubelet, true},
		"a lease":                     {"Failed to update lease", context.DeadlineExceeded, kubelet, true},
		"a wrong object":              {"Unhandled Error", errors.New(`apiserver received an error that is not an metav1.Status: &errors.errorString{s:"failed to create typed patch object (default/refused; /v1, Kind=ConfigMap): .wrong-3: field not declared in schema"}: failed to create typed patch object (default/refused; /v1, Kind=ConfigMap): .wrong-3: field not declared in schema`), nil, true},
		"an answer that came late":    {"Timeout or abort while handling", nil, nil, true},
		"a claim that changes":        {"Plugin failed", errors.New(`"default/data-set-2" is out of sync (stored: 3118, assume: 3115)`), nil, true},
		"a claim before its volume":   {"Error creating spec for volume of pod", errors.New(`error processing PVC "default"/"claim-0": PVC default/claim-0 has non-bound phase ("Pending") or empty pvc.Spec.VolumeName ("")`), nil, true},
		"a container without figures": {"Partial failure issuing cadvisor.ContainerInfoV2", errors.New(`partial failures: ["/kubepods/besteffort/pod1": RecentStats: unable to find data in memory cache]`), nil, true},
		"input that nobody reads":     {"Copying stdin failed", io.EOF, nil, true},
		"a pod's fault":               {"Error syncing pod, skipping", errors.New("any"), kubelet, true},
		"an error that a client gets": {"Unhandled Error", errors.New(`apiserver received an error that is not an metav1.Status: &url.Error{Op:"Get"}: Get "https://agent-1:10250/containerLogs/default/a/a": dial agent-1:10250 through node agent-1: the node has no tunnel to this server`), nil, true},
		"half an answer":              {"Unexpected error when reading response body", io.ErrUnexpectedEOF, nil, true},
		"a token of a pod that goes":  {"Error preparing data for projected volume kube-api-access-kkhr8 for pod default/quick-0-3: failed to fetch token: the API server does not have TokenRequest endpoints enabled", nil, kubelet, true},
		"a folder of somebody else":   {"Could not read directory", errors.New("open /var/lib/kubelet/pods/1/volumes: permission denied"), kubelet, false},
		"a log that is gone":          {"Failed to remove container log dead symlink", errors.New("remove /var/log/containers/a.log: no such file or directory"), kubelet, true},
		"no route":                    {"Failed to get status for pod", errors.New("no route to host"), nil, false},
	} {
		if got := isRoutine(test.message, test.err, slices.Values(test.functions)); got != test.want {
			t.Errorf("%s: %s: %v: got %t, want %t", name, test.message, test.err, got, test.want)
		}
	}
}

// queue has a worker whose name is that of upstream's.
type queue struct{ bridge *bridge }

func (q *queue) processNextWorkItem() { utilruntime.HandleError(errors.New("timeout")) }

// handleErr is what upstream's workers call that drop an object after many attempts.
func (q *queue) handleErr() { q.processNextWorkItem() }

// TestCallers logs the same error in a worker and elsewhere.
func TestCallers(t *testing.T) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	q := &queue{newBridge(log, &Verbosity{})}
	q.bridge.phase.Ready()
	klog.SetLogger(logr.New(q.bridge))
	t.Cleanup(klog.ClearLogger)
	if q.processNextWorkItem(); out.Len() > 0 {
		t.Errorf("a worker logged %s", &out)
	}
	if q.handleErr(); !strings.Contains(out.String(), "level=error") {
		t.Errorf("got %q of a worker that drops an object, want an error", &out)
	}
	out.Reset()
	if q.bridge.Error(errors.New("timeout"), "Unhandled Error"); !strings.Contains(out.String(), "level=error") {
		t.Errorf("got %q, want an error", &out)
	}
	// What ends the process is never routine.
	out.Reset()
	if q.bridge.writeLine([]byte("F1121 file.go:42] hook failed, will retry: context canceled\n")); !strings.Contains(out.String(), "level=error") {
		t.Errorf("got %q, want an error", &out)
	}
}
