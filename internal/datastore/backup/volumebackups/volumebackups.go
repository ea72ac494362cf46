// Package volumebackups backs up the contents of volumes, by VolumeBackups in the API. One server at a time makes them by schedule, and asks the node of the
// volume by an annotation of its PersistentVolume. Each server takes what nodes send, and gives it back after a restore.
package volumebackups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// ChosenAnnotation is on a claim. Its value true or false says whether the schedule backs up the claim's volume. Without it, the parameter
// localstorage.BackupParameter of the StorageClass decides, and without that, the volume is backed up.
const ChosenAnnotation = "kedge.dev/backup"

// Config is what New needs.
type Config struct {
	// Client calls the API as system:kedge:backup.
	Client *rest.Config
	// Elected runs loops while this server is the one that asks nodes, until ctx ends. It calls ready once.
	Elected func(ctx context.Context, loops Loops, ready func()) error
	// Store opens the store of volumes.
	Store func(ctx context.Context, cluster kubernetes.Interface) (*volumes.Store, error)
	// Schedule is when to back up, in cron's syntax, or empty.
	Schedule string
	Keep     volumes.Keep
	// Inherited is the file in which a restore leaves what is to come back.
	Inherited string
	// Node is the server's node.
	Node string
	Now  func() time.Time
}

// Loops are what runs on one server at a time: election.Loops.
type Loops interface {
	Lead(ctx context.Context, ready func()) error
}

// VolumeBackups is the component, and a volumedata.Server.
type VolumeBackups struct {
	cfg     Config
	log     *logrus.Entry
	api     kubernetes.Interface
	objects objects
	// restoring limits how many volumes come back at a time.
	restoring chan struct{}
}

var _ volumedata.Server = (*VolumeBackups)(nil)

// maxRestoring is how many volumes a server sends at a time. Each takes 16 MiB.
const maxRestoring = 2

// New makes the component.
func New(cfg Config) (*VolumeBackups, error) {
	api, err := kubernetes.NewForConfig(cfg.Client)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	client, err := dynamic.NewForConfig(localstorage.JSON(cfg.Client))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &VolumeBackups{
		cfg: cfg, log: logrus.WithField("component", "volume-backup"), api: api, objects: objects{client.Resource(Resource)},
		restoring: make(chan struct{}, maxRestoring),
	}, nil
}

// Name implements component.Component.
func (*VolumeBackups) Name() string { return "volume-backup" }

// Run implements component.Component.
func (k *VolumeBackups) Run(ctx context.Context, ready func()) error {
	if err := (loop.Loop{Log: k.log}).Until(ctx, k.inherit); err != nil {
		return nil // kedge stops
	}
	return k.cfg.Elected(ctx, k, ready)
}

// controller asks nodes, on one server at a time.
type controller struct {
	*VolumeBackups
	events   record.EventRecorder
	known    cache.Store
	schedule cron.Schedule
	// next is when the schedule makes VolumeBackups. It is zero without a schedule.
	next time.Time
	// pruned is the day on which old versions were removed.
	pruned string
}

// Lead implements Loops.
func (k *VolumeBackups) Lead(ctx context.Context, ready func()) error {
	c := &controller{VolumeBackups: k, events: events.NewRecorder(ctx, k.api, "kedge-backup", k.cfg.Node)}
	if k.cfg.Schedule != "" {
		schedule, err := cron.ParseStandard(k.cfg.Schedule)
		if err != nil { // config has checked it
			return fmt.Errorf("read backup-volumes: %w", err)
		}
		c.schedule, c.next = schedule, schedule.Next(k.cfg.Now())
	}
	wake := loop.NewChanges()
	client, err := dynamic.NewForConfig(localstorage.JSON(k.cfg.Client))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	c.known = informer.GetStore()
	// Both fail only on an informer that has started.
	_ = informer.SetTransform(objectcache.WithoutManagedFields)
	_, _ = informer.AddEventHandler(objectcache.OnChange(func(any) { wake.Notify() }))
	go informer.RunWithContext(ctx)
	ready()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	loop.Loop{Log: k.log, Wake: wake, Meanwhile: "volumes are not backed up"}.Run(ctx, c.turn)
	return nil
}

// Missing returns, for each claim whose last backup failed, that VolumeBackup. One that never began does not count: a user may have named a wrong claim.
func (k *VolumeBackups) Missing(ctx context.Context) ([]*VolumeBackup, error) {
	all, err := k.objects.list(ctx, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	newest := map[types.NamespacedName]*VolumeBackup{}
	for _, v := range all {
		claim := types.NamespacedName{Namespace: v.Namespace, Name: v.Spec.ClaimName}
		ended := v.Status.StartTime != nil && v.Status.CompletionTime != nil
		if ended && (newest[claim] == nil || newest[claim].Status.CompletionTime.Before(v.Status.CompletionTime)) {
			newest[claim] = v
		}
	}
	var missing []*VolumeBackup
	for claim, v := range newest {
		if v.Status.Phase != Failed {
			continue
		}
		_, err := k.api.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err == nil {
			missing = append(missing, v)
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("get claim: %w", err)
		}
	}
	slices.SortFunc(missing, func(a, b *VolumeBackup) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	return missing, nil
}

// pruneEvery is how often old versions are removed.
const pruneEvery = 24 * time.Hour

// silence is how long a node may say nothing about a volume that it is to send.
const silence = 15 * time.Minute

// turn looks at everything. One volume is sent at a time, so that its memory and its bytes on the wire are bounded.
func (c *controller) turn(ctx context.Context) (loop.Next, error) {
	now := c.cfg.Now()
	if !c.next.IsZero() && !now.Before(c.next) {
		before, err := c.all()
		if err != nil {
			return loop.Next{}, err
		}
		if err := c.makeScheduled(ctx, before, c.next); err != nil {
			return loop.Next{}, err
		}
		c.next = c.schedule.Next(now)
	}
	next := loop.Next{After: pruneEvery}
	if !c.next.IsZero() {
		next.After = min(next.After, max(c.next.Sub(now), time.Second))
	}
	all, err := c.all()
	if err != nil {
		return loop.Next{}, err
	}
	if i := slices.IndexFunc(all, func(v *VolumeBackup) bool { return v.Status.Phase == Running }); i >= 0 {
		return loop.Next{After: time.Minute}, c.supervise(ctx, all[i], now)
	}
	if v := nextOf(all); v != nil {
		if err := c.begin(ctx, v); err != nil {
			return loop.Next{}, err
		}
		return next, nil
	}
	if day := now.UTC().Format(time.DateOnly); day != c.pruned && (len(all) > 0 || c.schedule != nil) {
		if err := c.prune(ctx, all, now); err != nil {
			return loop.Next{}, err
		}
		c.pruned = day
	}
	return next, nil
}

// nextOf returns the VolumeBackup that has its turn, or nil: the oldest one of the namespace that has waited longest. So a namespace with many claims, or with
// slow commands in its pods, keeps the others waiting for one volume at most.
func nextOf(all []*VolumeBackup) *VolumeBackup {
	last := map[string]time.Time{}
	for _, v := range all {
		if at := v.Status.StartTime; at != nil && at.After(last[v.Namespace]) {
			last[v.Namespace] = at.Time
		}
	}
	var next *VolumeBackup
	for _, v := range all {
		if v.Status.Phase == "" && v.DeletionTimestamp == nil && (next == nil || last[v.Namespace].Before(last[next.Namespace])) {
			next = v
		}
	}
	return next
}

// all returns the VolumeBackups, the oldest first.
func (c *controller) all() ([]*VolumeBackup, error) {
	var all []*VolumeBackup
	for _, object := range c.known.List() {
		v, err := Read(object.(*unstructured.Unstructured).Object)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *VolumeBackup) int {
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all, nil
}

// makeScheduled makes a VolumeBackup for each claim whose volume is to be backed up. before are those that there are.
func (c *controller) makeScheduled(ctx context.Context, before []*VolumeBackup, at time.Time) error {
	claims, err := c.api.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	found, err := c.api.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list StorageClasses: %w", err)
	}
	classes := map[string]*storagev1.StorageClass{}
	for i := range found.Items {
		classes[found.Items[i].Name] = &found.Items[i]
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound || !chosen(claim, classes) || slices.ContainsFunc(before, isDue(claim)) {
			continue
		}
		name := claim.Name + at.UTC().Format("-20060102-1504")
		err := c.objects.create(ctx, &VolumeBackup{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: claim.Namespace}, Spec: Spec{ClaimName: claim.Name}})
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) { // such as in a namespace that ends
			return err
		}
	}
	return nil
}

// isDue tells whether a VolumeBackup of a claim waits for its turn, or has it. Such a claim gets no other one from the schedule, so that no queue grows
// if backups take longer than the time between two of them.
func isDue(claim *corev1.PersistentVolumeClaim) func(*VolumeBackup) bool {
	return func(v *VolumeBackup) bool {
		return v.Namespace == claim.Namespace && v.Spec.ClaimName == claim.Name && v.DeletionTimestamp == nil && (v.Status.Phase == "" || v.Status.Phase == Running)
	}
}

// chosen tells whether the schedule backs up the volume of a claim.
func chosen(claim *corev1.PersistentVolumeClaim, classes map[string]*storagev1.StorageClass) bool {
	if !localstorage.Provisions(claim.Annotations[localstorage.ProvisionerAnnotation]) {
		return false
	}
	wish := claim.Annotations[ChosenAnnotation]
	if class := claim.Spec.StorageClassName; wish == "" && class != nil && classes[*class] != nil {
		wish = classes[*class].Parameters[localstorage.BackupParameter]
	}
	return wish != "false"
}

// begin asks the node of the claim's volume.
func (c *controller) begin(ctx context.Context, v *VolumeBackup) error {
	volume, node, err := c.find(ctx, v)
	var refused refusal
	if errors.As(err, &refused) {
		return c.fail(ctx, v, refused.Error())
	}
	if err != nil {
		return err
	}
	now := metav1.NewTime(c.cfg.Now())
	return c.objects.change(ctx, v, func(s *Status) bool {
		begins := s.Phase == ""
		*s = Status{Phase: Running, Volume: volume.Name, Node: node, StartTime: &now, UpdateTime: &now}
		return begins
	})
}

// refusal says to a user why a volume cannot be backed up.
type refusal string

func (r refusal) Error() string { return string(r) }

// find returns the volume of the claim. A claim can name any volume, also one of another namespace, so only a volume that names the claim counts.
func (c *controller) find(ctx context.Context, v *VolumeBackup) (*corev1.PersistentVolume, string, error) {
	claim, err := c.api.CoreV1().PersistentVolumeClaims(v.Namespace).Get(ctx, v.Spec.ClaimName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", refusal(fmt.Sprintf("there is no claim %s in this namespace", v.Spec.ClaimName))
	}
	if err != nil {
		return nil, "", fmt.Errorf("get claim: %w", err)
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return nil, "", refusal(fmt.Sprintf("the claim %s has no volume yet", claim.Name))
	}
	volume, err := c.api.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("get volume: %w", err)
	}
	if err != nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return nil, "", refusal(fmt.Sprintf("the claim %s has no volume", claim.Name))
	}
	node, ours := localstorage.NodeOf(volume)
	if !ours {
		return nil, "", refusal(fmt.Sprintf("the volume of the claim %s is not one of the driver %s, so kedge cannot read it", claim.Name, localstorage.Driver))
	}
	return volume, node, nil
}

// supervise makes sure that the node is asked, and gives up if it says nothing.
func (c *controller) supervise(ctx context.Context, v *VolumeBackup, now time.Time) error {
	if v.DeletionTimestamp != nil {
		return c.failed(ctx, v, "it was deleted") // a finalizer must not keep the others waiting
	}
	volume, err := c.api.CoreV1().PersistentVolumes().Get(ctx, v.Status.Volume, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.fail(ctx, v, "the volume was deleted")
	}
	if err != nil {
		return fmt.Errorf("get volume: %w", err)
	}
	if last := v.Status.UpdateTime; last == nil || now.Sub(last.Time) > silence {
		if err := c.fail(ctx, v, fmt.Sprintf("node %s has said nothing for %s: check that it is ready", v.Status.Node, silence)); err != nil {
			return err
		}
		return c.annotate(ctx, volume.Name, volumedata.BackupAnnotation, "")
	}
	order := v.Namespace + "/" + v.Name
	if volume.Annotations[volumedata.BackupAnnotation] == order {
		return nil
	}
	return c.annotate(ctx, volume.Name, volumedata.BackupAnnotation, order)
}

// annotate sets an annotation of a PersistentVolume, or removes it if the value is empty.
func (k *VolumeBackups) annotate(ctx context.Context, volume, key, value string) error {
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, key, text)
	_, err := k.api.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate volume: %w", err)
	}
	return nil
}

// fail ends a VolumeBackup, and tells the users of the claim.
func (c *controller) fail(ctx context.Context, v *VolumeBackup, message string) error {
	claim := &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: v.Namespace, Name: v.Spec.ClaimName}
	c.events.Event(claim, corev1.EventTypeWarning, "VolumeBackupFailed", events.Message(message))
	return c.failed(ctx, v, message)
}

// failed notes that a VolumeBackup has failed.
func (k *VolumeBackups) failed(ctx context.Context, v *VolumeBackup, message string) error {
	now := metav1.NewTime(k.cfg.Now())
	return k.objects.change(ctx, v, func(s *Status) bool {
		ended := s.Phase == Completed || s.Phase == Failed
		s.Phase, s.Message, s.CompletionTime, s.Progress = Failed, message, &now, ""
		return !ended
	})
}

// prune removes the versions that need not be kept, and the VolumeBackups of these. Nothing is being saved meanwhile.
func (c *controller) prune(ctx context.Context, all []*VolumeBackup, now time.Time) error {
	store, err := c.cfg.Store(ctx, c.api)
	if err != nil {
		return err
	}
	names, err := store.Volumes(ctx)
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, name := range names {
		_, err := c.api.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get volume: %w", err)
		}
		versions, err := store.Prune(ctx, name, err == nil, c.cfg.Keep, now)
		if err != nil {
			return fmt.Errorf("remove old files of the backup: %w", err)
		}
		for _, version := range versions {
			left[name+"/"+version] = true
		}
	}
	for _, v := range all {
		old := v.Status.Phase == Failed && now.Sub(v.CreationTimestamp.Time) > c.cfg.Keep.All
		if v.Status.Phase == Completed && v.Status.Version != nil {
			old = !left[v.Status.Volume+"/"+v.Status.Version.Name]
		}
		if !old {
			continue
		}
		err := c.objects.Namespace(v.Namespace).Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
		if err := localstorage.IgnoreOutdated(err); err != nil {
			return fmt.Errorf("delete VolumeBackup: %w", err)
		}
	}
	return nil
}
