package volumebackups

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// Resource is that of /manifests/local-storage/volumebackups.yaml.
var Resource = schema.GroupVersionResource{Group: "kedge.dev", Version: "v1alpha1", Resource: "volumebackups"}

// Phase says how far a VolumeBackup is. It is empty at first.
type Phase string

// The phases.
const (
	Running   Phase = "Running"
	Completed Phase = "Completed"
	Failed    Phase = "Failed"
)

// VolumeBackup is a backup of the volume of one claim, at one time.
type VolumeBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitempty"`
}

// Spec is what a user asks for.
type Spec struct {
	// ClaimName is a claim of the same namespace.
	ClaimName string `json:"claimName"`
}

// Status is what became of it.
type Status struct {
	Phase Phase `json:"phase,omitempty"`
	// Message says why it failed.
	Message string `json:"message,omitempty"`
	// Volume is the PersistentVolume, and Node the node that has it.
	Volume string `json:"volume,omitempty"`
	Node   string `json:"node,omitempty"`
	// Progress says how much was read, to people.
	Progress       string       `json:"progress,omitempty"`
	StartTime      *metav1.Time `json:"startTime,omitempty"`
	UpdateTime     *metav1.Time `json:"updateTime,omitempty"`
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Version is the version in the place of the backup.
	Version *volumes.Ref `json:"version,omitempty"`
	// Size is that of the contents, and Sent what was written to the backup, to people.
	Size string `json:"size,omitempty"`
	Sent string `json:"sent,omitempty"`
}

// objects are the VolumeBackups in the API.
type objects struct {
	dynamic.NamespaceableResourceInterface
}

// Read returns the VolumeBackup of an object of the API.
func Read(object map[string]any) (*VolumeBackup, error) {
	var v VolumeBackup
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &v); err != nil {
		return nil, fmt.Errorf("read VolumeBackup: %w", err)
	}
	return &v, nil
}

func (o objects) get(ctx context.Context, namespace, name string) (*VolumeBackup, error) {
	object, err := o.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get VolumeBackup: %w", err)
	}
	return Read(object.Object)
}

func (o objects) list(ctx context.Context, namespace string) ([]*VolumeBackup, error) {
	found, err := o.Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list VolumeBackups: %w", err)
	}
	all := make([]*VolumeBackup, len(found.Items))
	for i := range found.Items {
		if all[i], err = Read(found.Items[i].Object); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// create makes a VolumeBackup, unless there is one of that name.
func (o objects) create(ctx context.Context, v *VolumeBackup) error {
	v.APIVersion, v.Kind = Resource.GroupVersion().String(), "VolumeBackup"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		return fmt.Errorf("encode VolumeBackup: %w", err)
	}
	_, err = o.Namespace(v.Namespace).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make VolumeBackup: %w", err)
	}
	return nil
}

// change changes the status of a VolumeBackup that is there. do returns false if nothing is to be changed any more.
func (o objects) change(ctx context.Context, v *VolumeBackup, do func(*Status) bool) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := o.Namespace(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		current, err := Read(now.Object)
		if err != nil || current.UID != v.UID || !do(&current.Status) {
			return err
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
		if err != nil {
			return err
		}
		_, err = o.Namespace(v.Namespace).UpdateStatus(ctx, &unstructured.Unstructured{Object: object}, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change VolumeBackup: %w", err)
	}
	return nil
}
