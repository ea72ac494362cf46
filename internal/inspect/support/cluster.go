package support

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// page is how many objects are asked for at once.
const page = 500

// Cluster returns the parts that describe the cluster, as the API tells it. The fields of
// the objects are named here one by one, so that no environment, argument or annotation
// gets into the archive.
func Cluster(client kubernetes.Interface) []Part {
	return []Part{
		{"cluster/nodes.yaml", func(ctx context.Context) ([]byte, error) { return nodes(ctx, client) }},
		{"cluster/pods.yaml", func(ctx context.Context) ([]byte, error) { return pods(ctx, client) }},
		{"cluster/volumes.yaml", func(ctx context.Context) ([]byte, error) { return volumes(ctx, client) }},
		{"cluster/events.txt", func(ctx context.Context) ([]byte, error) { return eventsText(ctx, client) }},
	}
}

type node struct {
	Name       string                 `json:"name"`
	Created    metav1.Time            `json:"created"`
	Labels     map[string]string      `json:"labels,omitempty"`
	PodCIDRs   []string               `json:"podCIDRs,omitempty"`
	Taints     []corev1.Taint         `json:"taints,omitempty"`
	Conditions []corev1.NodeCondition `json:"conditions,omitempty"`
	Addresses  []corev1.NodeAddress   `json:"addresses,omitempty"`
	Capacity   corev1.ResourceList    `json:"capacity,omitempty"`
	Info       corev1.NodeSystemInfo  `json:"info"`
}

func nodes(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var shown []node
	for _, n := range list.Items {
		shown = append(shown, node{
			Name: n.Name, Created: n.CreationTimestamp, Labels: n.Labels, PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints,
			Conditions: n.Status.Conditions, Addresses: n.Status.Addresses, Capacity: n.Status.Capacity, Info: n.Status.NodeInfo,
		})
	}
	return yaml.Marshal(shown)
}

type pod struct {
	Namespace  string                `json:"namespace"`
	Name       string                `json:"name"`
	Node       string                `json:"node,omitempty"`
	Created    metav1.Time           `json:"created"`
	Deleted    *metav1.Time          `json:"deleted,omitempty"`
	Phase      corev1.PodPhase       `json:"phase"`
	Reason     string                `json:"reason,omitempty"`
	Addresses  []corev1.PodIP        `json:"addresses,omitempty"`
	Conditions []corev1.PodCondition `json:"conditions,omitempty"`
	Containers []container           `json:"containers,omitempty"`
}

type container struct {
	Name     string `json:"name"`
	Image    string `json:"image"`
	Ready    bool   `json:"ready"`
	Restarts int32  `json:"restarts"`
	State    string `json:"state"`
	Before   string `json:"before,omitempty"`
}

func pods(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	var shown []pod
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, p := range list.Items {
			shown = append(shown, showPod(&p))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return yaml.Marshal(shown)
		}
	}
}

func showPod(p *corev1.Pod) pod {
	shown := pod{
		Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Created: p.CreationTimestamp, Deleted: p.DeletionTimestamp,
		Phase: p.Status.Phase, Reason: p.Status.Reason, Addresses: p.Status.PodIPs, Conditions: p.Status.Conditions,
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses) {
		shown.Containers = append(shown.Containers, container{
			Name: s.Name, Image: s.Image, Ready: s.Ready, Restarts: s.RestartCount,
			State: showState(s.State), Before: showState(s.LastTerminationState),
		})
	}
	return shown
}

// showState leaves out a container's termination message, which is the program's own
// text.
func showState(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running since " + s.Running.StartedAt.Format(time.RFC3339)
	case s.Terminated != nil:
		return fmt.Sprintf("ended at %s with status %d, signal %d: %s", s.Terminated.FinishedAt.Format(time.RFC3339), s.Terminated.ExitCode, s.Terminated.Signal, s.Terminated.Reason)
	case s.Waiting != nil:
		return "waits: " + s.Waiting.Reason
	}
	return ""
}

type volume struct {
	Name     string                     `json:"name,omitempty"`
	Claim    string                     `json:"claim,omitempty"`
	Class    string                     `json:"class,omitempty"`
	Phase    string                     `json:"phase"`
	Capacity corev1.ResourceList        `json:"capacity,omitempty"`
	Affinity *corev1.VolumeNodeAffinity `json:"affinity,omitempty"`
}

func volumes(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var shown []volume
	for _, v := range list.Items {
		described := volume{Name: v.Name, Class: v.Spec.StorageClassName, Phase: string(v.Status.Phase), Capacity: v.Spec.Capacity, Affinity: v.Spec.NodeAffinity}
		if claim := v.Spec.ClaimRef; claim != nil {
			described.Claim = claim.Namespace + "/" + claim.Name
		}
		shown = append(shown, described)
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range claims.Items {
		if c.Spec.VolumeName == "" {
			shown = append(shown, volume{Claim: c.Namespace + "/" + c.Name, Phase: string(c.Status.Phase)})
		}
	}
	return yaml.Marshal(shown)
}

func eventsText(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	list, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int { return cmp.Compare(events.Seen(&a).Unix(), events.Seen(&b).Unix()) })
	var text strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&text, "%s %s %s %s/%s/%s %d times: %s\n", events.Seen(&e).Format(time.RFC3339), e.Type, e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, max(e.Count, 1), strings.ReplaceAll(events.WithoutOwnWords(&e), "\n", " "))
	}
	return []byte(text.String()), nil
}
