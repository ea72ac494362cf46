package volumebackups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// progressEvery is how often the status says how far a backup is.
const progressEvery = 10 * time.Second

// maxFault is how many bytes of what a node tells are kept.
const maxFault = 2 << 10

// volume returns a volume of a node.
func (k *VolumeBackups) volume(ctx context.Context, node, name string) (*corev1.PersistentVolume, error) {
	volume, err := k.api.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, volumedata.ErrNotAsked
	}
	if err != nil {
		return nil, fmt.Errorf("get volume: %w", err)
	}
	if on, ours := localstorage.NodeOf(volume); !ours || on != node {
		return nil, volumedata.ErrNotAsked
	}
	return volume, nil
}

// ordered returns the VolumeBackup for which a node is to send a volume.
func (k *VolumeBackups) ordered(ctx context.Context, node, name string) (*VolumeBackup, error) {
	volume, err := k.volume(ctx, node, name)
	if err != nil {
		return nil, err
	}
	namespace, object, ok := strings.Cut(volume.Annotations[volumedata.BackupAnnotation], "/")
	if !ok {
		return nil, volumedata.ErrNotAsked
	}
	v, err := k.objects.get(ctx, namespace, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil || v.Status.Phase != Running || v.Status.Volume != name || v.Status.Node != node {
		return nil, errors.Join(volumedata.ErrNotAsked, k.annotate(ctx, name, volumedata.BackupAnnotation, ""))
	}
	return v, nil
}

// Save implements volumedata.Server.
func (k *VolumeBackups) Save(ctx context.Context, node, volume string, about json.RawMessage, content io.Reader) error {
	v, err := k.ordered(ctx, node, volume)
	if err != nil {
		return err
	}
	saved, err := k.save(ctx, v, about, content)
	// The status is also written if the node has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err != nil {
		return errors.Join(err, k.end(ctx, v, func() error { return k.failed(ctx, v, err.Error()) }))
	}
	now := metav1.NewTime(k.cfg.Now())
	return k.end(ctx, v, func() error {
		return k.objects.change(ctx, v, func(s *Status) bool {
			// If the controller has given it up, its pieces may have been removed meanwhile.
			if s.Phase != Running {
				return false
			}
			s.Phase, s.Version, s.CompletionTime, s.Progress = Completed, &saved.Ref, &now, ""
			s.Size, s.Sent = humanize.IBytes(uint64(saved.Size)), humanize.IBytes(uint64(saved.Sent))
			return true
		})
	})
}

// end writes how a VolumeBackup has ended, and withdraws the order.
func (k *VolumeBackups) end(ctx context.Context, v *VolumeBackup, write func() error) error {
	if err := write(); err != nil {
		return err
	}
	return k.annotate(ctx, v.Status.Volume, volumedata.BackupAnnotation, "")
}

// save writes a version of a volume to the place.
func (k *VolumeBackups) save(ctx context.Context, v *VolumeBackup, about json.RawMessage, content io.Reader) (volumes.Saved, error) {
	store, err := k.cfg.Store(ctx, k.api)
	if err != nil {
		return volumes.Saved{}, err
	}
	before, err := k.newest(ctx, v)
	if err != nil {
		return volumes.Saved{}, err
	}
	var told time.Time
	progress := func(done int64) {
		if now := k.cfg.Now(); now.Sub(told) > progressEvery {
			told = now
			at := metav1.NewTime(now)
			// The next progress may succeed.
			_ = k.objects.change(ctx, v, func(s *Status) bool {
				s.Progress, s.UpdateTime = humanize.IBytes(uint64(done))+" read", &at
				return s.Phase == Running
			})
		}
	}
	return store.Save(ctx, volumes.Version{Volume: v.Status.Volume, Time: v.Status.StartTime.Time, About: about}, before, content, progress)
}

// newest returns the newest version of the same volume. It is nil if there is none.
func (k *VolumeBackups) newest(ctx context.Context, v *VolumeBackup) (*volumes.Ref, error) {
	all, err := k.objects.list(ctx, v.Namespace)
	if err != nil {
		return nil, err
	}
	return Newest(all)[v.Status.Volume].ref(), nil
}

// ref returns the version, or nil.
func (v *VolumeBackup) ref() *volumes.Ref {
	if v == nil {
		return nil
	}
	return v.Status.Version
}

// Newest returns the newest complete VolumeBackup of each volume.
func Newest(all []*VolumeBackup) map[string]*VolumeBackup {
	newest := map[string]*VolumeBackup{}
	for _, v := range all {
		if v.Status.Phase != Completed || v.Status.Version == nil || v.Status.StartTime == nil {
			continue
		}
		if other := newest[v.Status.Volume]; other == nil || other.Status.StartTime.Before(v.Status.StartTime) {
			newest[v.Status.Volume] = v
		}
	}
	return newest
}

// Tell implements volumedata.Server.
func (k *VolumeBackups) Tell(ctx context.Context, node, volume string, report volumedata.Report) error {
	if report.Fault == "" {
		return k.restored(ctx, node, volume)
	}
	v, err := k.ordered(ctx, node, volume)
	if err != nil {
		return err
	}
	// The status keeps it, and people read it in a terminal. A node may tell anything, and so may a command of a pod.
	fault := foreigntext.Printable(foreigntext.Cut(report.Fault, maxFault))
	return k.end(ctx, v, func() error { return k.failed(ctx, v, fault) })
}
