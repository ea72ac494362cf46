package snapshot

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// resourceOf is the resource of /manifests/snapshots.yaml.
var resourceOf = schema.GroupVersionResource{Group: "kedge.dev", Version: "v1", Resource: "snapshotfiles"}

// nodeLabel names the server that keeps an object in step with its file.
const nodeLabel = "kedge.dev/node"

// retries are the pauses between attempts to update the API. After the last attempt,
// the next change begins anew.
var retries = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 10}

// objects are the SnapshotFiles in the API.
type objects dynamic.ResourceInterface

func (s *Snapshots) connect() (err error) {
	if s.cfg.Client == nil || s.client != nil {
		return nil
	}
	if s.client, err = kubernetes.NewForConfig(s.cfg.Client); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	client, err := dynamic.NewForConfig(s.cfg.Client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	s.objects = client.Resource(resourceOf)
	return nil
}

// change makes tellAPI update the API.
func (s *Snapshots) change() { s.changed.Notify() }

// tellAPI keeps the API's objects in step with the files until ctx is done. It
// notices only changes by kedge itself, and the files that exist at the start.
func (s *Snapshots) tellAPI(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		var err error
		_ = wait.ExponentialBackoffWithContext(ctx, retries, func(ctx context.Context) (bool, error) {
			err = s.reconcile(ctx)
			return err == nil, nil
		})
		if err != nil && ctx.Err() == nil {
			s.log.Warnf("The SnapshotFiles in the API are not up to date: %v", err)
		}
	}
}

// reconcile makes one object for each file of this node, and deletes the others
// of this node. Objects of a place that does not answer stay unchanged.
func (s *Snapshots) reconcile(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]*unstructured.Unstructured{}
	want := func(files ...File) {
		for _, f := range files {
			if f.Node != s.cfg.NodeName && !strings.HasPrefix(f.Location, "file:") {
				continue // another server's file, which that server reports
			}
			if object := s.object(f); object != nil {
				wanted[object.GetName()] = object
			}
		}
	}
	files, err := s.cfg.listFolder()
	if err != nil {
		return err
	}
	want(files...)
	remoteKnown := true
	if s.cfg.Settings.S3 {
		remote, err := s.listS3(ctx)
		want(remote...)
		remoteKnown = err == nil
	}
	for _, f := range s.failed {
		want(f)
	}
	// One request is enough, without a watch: nobody else writes these objects.
	there, err := s.objects.List(ctx, metav1.ListOptions{LabelSelector: nodeLabel + "=" + labelValue(s.cfg.NodeName)})
	if err != nil {
		return fmt.Errorf("list SnapshotFiles: %w", err)
	}
	for i := range there.Items {
		live := &there.Items[i]
		object := wanted[live.GetName()]
		delete(wanted, live.GetName())
		location, _, _ := unstructured.NestedString(live.Object, "spec", "location")
		switch {
		case object == nil && strings.HasPrefix(location, "s3:") && !remoteKnown:
		case object == nil:
			if err := s.objects.Delete(ctx, live.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete SnapshotFile: %w", err)
			}
		case !reflect.DeepEqual(live.Object["spec"], object.Object["spec"]) || !reflect.DeepEqual(live.Object["status"], object.Object["status"]):
			object.SetResourceVersion(live.GetResourceVersion())
			if _, err := s.objects.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("update SnapshotFile: %w", err)
			}
		}
	}
	for _, object := range wanted {
		if _, err := s.objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create SnapshotFile: %w", err)
		}
	}
	return nil
}

// object returns the API's object for a file, or nil if no object can have that
// name.
func (s *Snapshots) object(f File) *unstructured.Unstructured {
	place, _, _ := strings.Cut(f.Location, ":")
	if place == "file" {
		place = "local"
	}
	// Two servers may have files of the same name, and a server may change its
	// bucket.
	sum := fnv.New32a()
	sum.Write([]byte(s.cfg.NodeName + "\n" + f.Location))
	name := place + "-" + strings.TrimSuffix(f.Name, suffix) + "-" + hex.EncodeToString(sum.Sum(nil))
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil
	}
	status := map[string]any{
		"creationTime": f.Created.UTC().Format(time.RFC3339),
		"readyToUse":   f.Error == "",
		"size":         resource.NewQuantity(f.Size, resource.DecimalSI).String(),
	}
	if f.Error != "" {
		status["error"] = map[string]any{"message": f.Error}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resourceOf.GroupVersion().String(),
		"kind":       "SnapshotFile",
		"metadata": map[string]any{
			"name":   name,
			"labels": map[string]any{nodeLabel: labelValue(s.cfg.NodeName)},
		},
		"spec":   map[string]any{"snapshotName": f.Name, "nodeName": s.cfg.NodeName, "location": f.Location},
		"status": status,
	}}
}

// labelValue returns a node's name, or a hash of it if the name is too long for a
// label.
func labelValue(node string) string {
	if len(validation.IsValidLabelValue(node)) == 0 {
		return node
	}
	sum := fnv.New64a()
	sum.Write([]byte(node))
	return hex.EncodeToString(sum.Sum(nil))
}

// These are the reasons of the node's Events.
const (
	eventSaved   = "SnapshotSaved"
	eventDeleted = "SnapshotDeleted"
	eventFailed  = "SnapshotFailed"
)

// event reports a snapshot in an Event of the node. If the Event is lost, the log
// still has the message.
func (s *Snapshots) event(ctx context.Context, reason, message string) {
	if s.client == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if reason == eventFailed {
		kind = corev1.EventTypeWarning
	}
	now := metav1.NewTime(s.now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", s.cfg.NodeName, now.UnixNano()),
			Namespace: metav1.NamespaceDefault,
		},
		// The kubelet refers to its node in the same way, so `kubectl describe node`
		// finds the Event.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: s.cfg.NodeName},
		Reason:         reason, Message: events.Message(message), Type: kind,
		Source:         corev1.EventSource{Component: "kedge-snapshots", Host: s.cfg.NodeName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		ReportingController: "kedge.dev/snapshots", ReportingInstance: s.cfg.NodeName,
	}
	// The Event is also written if the save failed because the caller's context
	// ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := s.client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		s.log.Debugf("Cannot make an event: %v", err)
	}
}
