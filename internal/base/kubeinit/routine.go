package kubeinit

import (
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
	// pkg/controller, at every rollout: the controller looks at the object again
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/util/consistency/consistency.go ConsistencyError.Error
	{message: "Unhandled Error", detail: "is not as new as written version"},
	// pkg/controller/podautoscaler/horizontal.go, every 15 seconds: Events FailedGetScale,
	// FailedComputeMetricsReplicas and FailedGetResourceMetric, for example while pods start
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go HorizontalController.reconcileAutoscaler HorizontalController.computeReplicasForMetrics
	{message: "Unhandled Error", detail: "failed to query scale subresource for"},
	{message: "Unhandled Error", detail: "failed to compute desired number of replicas based on listed metrics"},
	{message: "Unhandled Error", detail: "invalid metrics ("},
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
	// k8s.io/cri-client: failures in a container, and pods that are gone meanwhile
	//upstream:relies-on k8s.io/cri-client/pkg/remote_runtime.go remoteRuntimeService.execSyncV1 remoteRuntimeService.execV1 remoteRuntimeService.StartContainer remoteRuntimeService.createContainerV1 remoteRuntimeService.containerStatusV1
	{message: "ExecSync cmd from runtime service failed"},
	{message: "Exec cmd from runtime service failed"},
	{message: "StartContainer from runtime service failed"},
	{message: "CreateContainer in sandbox from runtime service failed"},
	{message: "ContainerStatus from runtime service failed", detail: "not found"},
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go kubeGenericRuntimeManager.GetPodStatus
	{message: "PodSandboxStatus of sandbox for pod", detail: "not found"},
	// pkg/kubelet/prober/prober.go: an Event Unhealthy
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/prober/prober.go prober.probe
	{message: "Probe errored"},
	// pkg/kubelet/kuberuntime/kuberuntime_manager.go, for each pod that has not been started yet
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go kubeGenericRuntimeManager.computePodLevelResourcesResizeAction
	{message: "Missing actuated pod level resource record"},
	// pkg/kubelet/cm, for a pod whose cgroup is gone
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go Kubelet.convertToAPIPodLevelResourcesStatus
	{message: "failed to read memory cgroup limits for the pod", detail: "no such file"},
	{message: "failed to read memory cgroup config for the pod", detail: "no such file"},
	// pkg/kubelet/status/status_manager.go, for a pod that is deleted
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/status/status_manager.go manager.syncPod
	//upstream:relies-on k8s.io/kubernetes/plugin/pkg/auth/authorizer/node/node_authorizer.go NodeAuthorizer.authorize
	{message: "Failed to get status for pod", detail: "no relationship found"},
	{message: "Failed to update status for pod", detail: "not found"},
	// pkg/volume/secret and configmap: an Event FailedMount
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/secret/secret.go secretVolumeMounter.SetUpAt
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/projected/projected.go projectedVolumeMounter.collectData
	{message: "Couldn't get secret"},
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/configmap/configmap.go configMapVolumeMounter.SetUpAt
	{message: "Couldn't get configMap"},
	// pkg/volume/util/nestedpendingoperations: Events FailedMount and FailedAttachVolume
	//upstream:relies-on k8s.io/kubernetes/pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go ExponentialBackoff.GenerateNoRetriesPermittedMsg
	{message: "Operation for "},
	// pkg/scheduler/schedule_one.go, for a pod whose claim has just been made: an Event
	// FailedScheduling
	//upstream:relies-on k8s.io/kubernetes/pkg/scheduler/schedule_one.go Scheduler.schedulingAlgorithm
	{message: "Status after running PostFilter plugins for pod"},
	// k8s.io/apiserver/pkg/server/dynamiccertificates, at each renewal: a certificate and its
	// key are two files, and upstream reads them again
	//upstream:relies-on k8s.io/apiserver/pkg/server/dynamiccertificates/dynamic_serving_content.go DynamicCertKeyPairContent.processNextWorkItem
	{message: "Unhandled Error", detail: "private key does not match public key"},
	// k8s.io/apimachinery's runtime.HandleError in containerd's streaming server: the user
	// who ran the command gets the error
	//upstream:relies-on k8s.io/cri-streaming/pkg/streaming/remotecommand/exec.go ServeExec
	{message: "Unhandled Error", detail: "error executing command in container"},
	// k8s.io/client-go/tools/cache/reflector.go, if a watch ends before it has begun
	//upstream:relies-on k8s.io/client-go/tools/cache/reflector.go DefaultWatchErrorHandler
	{message: "Failed to watch", detail: "context canceled"},
	// k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go, at the end of an exec
	//upstream:relies-on k8s.io/apimachinery/pkg/util/proxy/upgradeaware.go UpgradeAwareHandler.tryUpgrade
	{message: "Error proxying data from", detail: "closed pipe"},
	// pkg/volume/csi/csi_plugin.go, until the node is registered
	//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go initializeCSINode
	{message: "Failed to initialize CSINode", detail: "not found"},
	// pkg/controller/nodeipam/ipam/range_allocator.go, if the node changes while the
	// controller gives it its range, and then tries again with an older state
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/nodeipam/ipam/range_allocator.go rangeAllocator.processNextNodeWorkItem rangeAllocator.updateCIDRsAllocation
	{message: "CIDR assignment for node failed", detail: "may not change podCIDR"},
	{message: "Error processing node work item", detail: "may not change podCIDR"},
	{message: "Failed to update node PodCIDR after multiple attempts", detail: "may not change podCIDR"},
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
	// pkg/kubelet/eviction, before images were listed
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/eviction/eviction_manager.go managerImpl.synchronize
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cadvisor/helpers_linux.go imageFsInfoProvider.ImageFsInfoLabel
	{message: "eviction manager: failed to check if we have separate container filesystem", detail: "no imagefs label"},
}

func (r routine) is(message, detail string) bool {
	return strings.HasPrefix(message, r.message) && strings.Contains(detail, r.detail)
}

// isRoutine tells whether an error with a detail is in routines.
func isRoutine(message, detail string) bool {
	return slices.ContainsFunc(routines, func(r routine) bool { return r.is(message, detail) })
}
