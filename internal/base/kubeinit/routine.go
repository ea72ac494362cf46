package kubeinit

import (
	"iter"
	"regexp"
	"slices"
	"strings"
)

// routine is an error that upstream logs while kedge and its host work well. The level
// error is for faults of kedge and its host. Events and the status of objects report the
// mistakes of users and pods.
type routine struct {
	// message is the beginning of the message. detail is a part of the error.
	message, detail string
}

//upstream:relies-on k8s.io/apimachinery/pkg/util/runtime/runtime.go logError HandleErrorWithContext
var routines = []routine{
	// k8s.io/streaming/pkg/httpstream/wsstream/conn.go, at the end of every exec
	//upstream:relies-on k8s.io/streaming/pkg/httpstream/wsstream/conn.go Conn.handle
	{message: "Error on socket receive"},
	// pkg/controller/replicaset/replica_set.go, when a server is elected again
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/replicaset/replica_set.go NewReplicaSetController
	{message: "unable to register metrics"},
	// pkg/kubelet/pod_workers.go: an Event FailedSync, or one about the failure, reports it
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/pod_workers.go podWorkers.podWorkerLoop
	{message: "Error syncing pod, skipping"},
	// pkg/kubelet/kuberuntime/kuberuntime_manager.go: Events Failed and BackOff
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go kubeGenericRuntimeManager.SyncPod
	{message: "Unhandled Error", detail: "start failed in pod"},
	// pkg/kubelet/kuberuntime/kuberuntime_image.go and k8s.io/cri-client: an Event Failed
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_image.go kubeGenericRuntimeManager.PullImage
	{message: "Failed to pull image"},
	//upstream:relies-on k8s.io/cri-client/pkg/remote_image.go remoteImageService.pullImageV1
	{message: "PullImage from image service failed"},
	// k8s.io/cri-client: failures in a container
	//upstream:relies-on k8s.io/cri-client/pkg/remote_runtime.go remoteRuntimeService.execSyncV1 remoteRuntimeService.execV1 remoteRuntimeService.attachV1 remoteRuntimeService.StartContainer remoteRuntimeService.createContainerV1
	{message: "ExecSync cmd from runtime service failed"},
	{message: "Exec cmd from runtime service failed"},
	{message: "Attach container from runtime service failed"},
	{message: "StartContainer from runtime service failed"},
	{message: "CreateContainer in sandbox from runtime service failed"},
	// pkg/kubelet/prober/prober.go: an Event Unhealthy
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/prober/prober.go prober.probe
	{message: "Probe errored"},
	// pkg/kubelet/kuberuntime/kuberuntime_manager.go, for each pod that has not been started yet
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go kubeGenericRuntimeManager.computePodLevelResourcesResizeAction
	{message: "Missing actuated pod level resource record"},
	// pkg/kubelet/stats, for a container that has just started or ended
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/stats/cadvisor_stats_provider.go getCadvisorContainerInfo
	{message: "Partial failure issuing cadvisor.ContainerInfoV2", detail: "unable to find data in memory cache"},
	// pkg/kubelet/kubelet.go, for example until a claim is bound: an Event FailedMount
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.SyncPod
	{message: "Unable to attach or mount volumes for pod; skipping pod"},
	// k8s.io/cri-client, if the kubelet removes a container from two loops at once
	//upstream:relies-on k8s.io/cri-client/pkg/remote_runtime.go remoteRuntimeService.RemoveContainer
	{message: "RemoveContainer from runtime service failed", detail: "already in removing state"},
	{message: "Failed to remove container", detail: "already in removing state"},
	// k8s.io/client-go/rest/request.go, if the server's answer ends too early: the caller gets an error that says so
	//upstream:relies-on k8s.io/client-go/rest/request.go Request.transformResponse
	{message: "Unexpected error when reading response body"},
	// The kubelet's garbage collector, if another loop has removed the link meanwhile
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_gc.go containerGC.evictPodLogsDirectories
	{message: "Failed to remove container log dead symlink", detail: "no such file or directory"},
	// pkg/kubelet/config/file.go: an Event FileNotUsed of kedge's own (package staticpods)
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/config/file.go sourceFile.extractFromDir sourceFile.run
	{message: "Could not process manifest file"},
	{message: "Manifest path is not a directory or file"},
	{message: "Unable to process watch event"},
	// pkg/volume/secret and configmap: an Event FailedMount
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/secret/secret.go secretVolumeMounter.SetUpAt
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/projected/projected.go projectedVolumeMounter.collectData
	{message: "Couldn't get secret"},
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/projected/projected.go projectedVolumeMounter.SetUpAt
	{message: "Error preparing data for projected volume"},
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/configmap/configmap.go configMapVolumeMounter.SetUpAt
	{message: "Couldn't get configMap"},
	// pkg/volume/util/nestedpendingoperations: Events FailedMount and FailedAttachVolume
	//upstream:relies-on k8s.io/kubernetes/pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go ExponentialBackoff.GenerateNoRetriesPermittedMsg
	{message: "Operation for "},
	// pkg/scheduler/schedule_one.go, for a pod whose claim has just been made: an Event
	// FailedScheduling
	//upstream:relies-on k8s.io/kubernetes/pkg/scheduler/schedule_one.go Scheduler.schedulingAlgorithm
	{message: "Status after running PostFilter plugins for pod"},
	// pkg/scheduler/framework/runtime, for example if somebody has changed the claim of a pod meanwhile. The pod
	// gets its turn again: an Event FailedScheduling
	//upstream:relies-on k8s.io/kubernetes/pkg/scheduler/framework/runtime/framework.go frameworkImpl.RunReservePluginsReserve frameworkImpl.RunPermitPlugins frameworkImpl.RunPreBindPlugins frameworkImpl.RunPreBindPreFlights
	{message: "Plugin failed"},
	// pkg/controller/volume/attachdetach, when a server starts while a pod waits for its claim
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/volume/attachdetach/attach_detach_controller.go attachDetachController.populateDesiredStateOfWorld
	{message: "Error creating spec for volume of pod", detail: "has non-bound phase"},
	// k8s.io/client-go/tools/remotecommand, if the command of an exec or attach ends before its input
	//upstream:relies-on k8s.io/client-go/tools/remotecommand/v2.go streamProtocolV2.copyStdin
	{message: "Copying stdin failed", detail: "EOF"},
	// k8s.io/apimachinery/pkg/util/managedfields: the client that applies a wrong object gets the answer
	//upstream:relies-on k8s.io/apimachinery/pkg/util/managedfields/internal/structuredmerge.go structuredMergeManager.Apply
	{message: "Unhandled Error", detail: "failed to create typed patch object"},
	// k8s.io/apiserver/pkg/endpoints/handlers/responsewriters: the client gets the status 500 with the same error
	//upstream:relies-on k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/status.go ErrorToAPIStatus
	{message: "Unhandled Error", detail: "apiserver received an error that is not an metav1.Status: "},
	// k8s.io/apiserver: the client gets the status 504, or has given up
	//upstream:relies-on k8s.io/apiserver/pkg/server/filters/wrap.go WithPanicRecovery
	{message: "Timeout or abort while handling"},
	//upstream:relies-on k8s.io/apiserver/pkg/server/filters/timeout.go timeoutHandler.ServeHTTP
	{message: "Post-timeout activity"},
	//upstream:relies-on k8s.io/apiserver/pkg/endpoints/handlers/finisher/finisher.go logPostTimeoutResult
	{message: "Unhandled Error", detail: "FinishRequest: post-timeout activity"},
	// pkg/registry/core/service, after kedge has adopted a cluster: Services whose ports and addresses no
	// allocator knows yet
	//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller/repair.go Repair.doRunOnce
	//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/service/ipallocator/controller/repairip.go RepairIPAddress.syncService
	{message: "Unhandled Error", detail: "is not allocated; repairing"},
	{message: "Unhandled Error", detail: "may have leaked: flagging for later clean up"},
	{message: "Unhandled Error", detail: "appears to have leaked: cleaning up"},
	// k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go, at the end of an exec
	//upstream:relies-on k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go UpgradeAwareHandler.tryUpgrade
	{message: "Error proxying data from", detail: "closed pipe"},
	{message: "Error proxying data from", detail: "websocket: close 1006"}, // the client has gone without a word
	// k8s.io/client-go/tools/record/event.go, at a stop: what has just happened is not told
	//upstream:relies-on k8s.io/client-go/tools/record/event.go eventBroadcasterImpl.recordToSink
	{message: "Unable to write event (broadcaster is shut down)"},
	// pkg/volume/csi/csi_plugin.go, until the node is registered
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go initializeCSINode
	{message: "Failed to initialize CSINode", detail: "not found"},
	// The same file, if no server answers the node. The manager of plugins registers the driver again.
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go RegistrationHandler.RegisterPlugin
	{message: "kubernetes.io/csi: registrationHandler.RegisterPlugin failed to unregister plugin due to previous error", detail: "error updating CSINode"},
	// pkg/kubelet at each start, even of a node that is ready: before the file exists, and on
	// a host with cgroup v1
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/manager.go ManagerImpl.readCheckpoint
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/checkpointmanager/errors/errors.go ErrCheckpointNotFound
	{message: "Failed to read data from checkpoint", detail: "checkpoint is not found"},
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/container_manager_linux.go containerManagerImpl.setupNode getContainer
	{message: "Failed to find cgroups of kubelet", detail: "not unified"},
	// pkg/kubelet/kubelet.go, until the kubelet has asked the container runtime for its state
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.syncLoop
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/runtime.go runtimeState.runtimeErrors
	{message: "Skipping pod synchronization", detail: "container runtime status check may not have completed yet"},
	// pkg/kubelet, on a busy machine: each of them is tried again at an interval, and the Node is not ready
	// if that does not help
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.syncLoopIteration
	{message: "Housekeeping took longer than expected"},
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go Kubelet.syncNodeStatus Kubelet.updateNodeStatus
	{message: "Unable to update node status", detail: "exceeds retry count"},
	//upstream:relies-on k8s.io/component-helpers/apimachinery/lease/controller.go controller.retryUpdateLease
	{message: "Failed to update lease"},
	// pkg/controller/garbagecollector, if the watches of new kinds take longer than 30 seconds to begin. Garbage is
	// collected meanwhile, and the watches go on.
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/garbagecollector/garbagecollector.go GarbageCollector.Sync
	{message: "Unhandled Error", detail: "timed out waiting for dependency graph builder sync during GC sync"},
	// pkg/controller/util/consistency, if a controller does not yet see its own last write. It looks again later.
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/util/consistency/consistency.go ConsistencyError.Error
	{detail: " is not as new as written version: "},
	// pkg/kubelet/kubelet.go, before images were listed. The second failure in a row has another message.
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go Kubelet.StartGarbageCollection
	{message: "Image garbage collection failed once"},
	// pkg/kubelet/volumemanager/populator, ten times a second until the claim of a volume is there: an Event
	// FailedMount
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go desiredStateOfWorldPopulator.processPodVolumes
	{message: "Error processing volume"},
	// pkg/kubelet/cm/devicemanager, when a device plugin ends, for example because a newer one takes its place: the
	// Node has no such devices then
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go client.Run
	{message: "ListAndWatch ended unexpectedly for device plugin"},
	// pkg/kubelet/kubelet_pods.go, about a pod that has just ended, and whose cgroup is gone
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go Kubelet.convertToAPIPodLevelResourcesStatus
	{message: "failed to read memory cgroup ", detail: "no such "},
	// pkg/kubelet/eviction, if the runtime takes more than ten seconds to end a pod, which goes on: an Event
	// ExceededGracePeriod
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/eviction/eviction_manager.go managerImpl.evictPod
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/pod_workers.go killPodNow
	{message: "Eviction manager: pod failed to evict", detail: "timeout waiting to kill pod"},
	// pkg/kubelet/eviction, before images were listed
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/eviction/eviction_manager.go managerImpl.synchronize
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cadvisor/helpers_linux.go imageFsInfoProvider.ImageFsInfoLabel
	{message: "eviction manager: failed to check if we have separate container filesystem", detail: "no imagefs label"},
}

func (r routine) is(message, detail string) bool {
	return strings.HasPrefix(message, r.message) && strings.Contains(detail, r.detail)
}

// isRoutine tells whether an error is in routines, or has one of the properties that retried.go describes.
// functions are those that called the logger.
func isRoutine(message string, err error, functions iter.Seq[string]) bool {
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	if slices.ContainsFunc(routines, func(r routine) bool { return r.is(message, detail) }) {
		return true
	}
	if limits.MatchString(detail) {
		return true
	}
	if denied.MatchString(detail) {
		return false
	}
	return isAnswer(err) || isGone(message) || isGone(detail) || isLate(err) && !never.MatchString(message) || isUnreachable(err) || isRetried(message) || fromWorker(functions) || isStream(functions)
}

// denied finds what a component hears that lacks a right, whose certificate no server accepts, or who does not trust
// a server's. That is a fault of kedge or of its host, however often the component tries again
// (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go).
//
//upstream:relies-on k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go forbiddenMessage
//upstream:relies-on k8s.io/apimachinery/pkg/api/errors/errors.go NewUnauthorized NewGenericServerResponse
//upstream:relies-on std/crypto/tls/common.go CertificateVerificationError.Error
var denied = regexp.MustCompile(` is forbidden: User "|^Unauthorized$|: Unauthorized$|the server has asked for the client to provide credentials|x509: `)
