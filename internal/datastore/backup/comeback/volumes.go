package comeback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// The folders of the datastore with what Volumes reads.
const (
	backupsKey = "/registry/kedge.dev/volumebackups/"
	volumesKey = "/registry/persistentvolumes/"
)

// Volume is a volume of the cluster that kedge made.
type Volume struct {
	// Name is that of its PersistentVolume, and Claim the namespace and name of the claim.
	Name, Claim string
	// Backup is the newest backup of its contents. It is nil if there is none.
	Backup *volumebackups.VolumeBackup
	// Fault says why the contents do not come back. It is nil if they do.
	Fault error

	version *volumes.Version
	secret  string
}

// errNoBackup is the fault of a volume that was never backed up.
var errNoBackup = errors.New("there is no backup of its contents")

// String describes the volume to a person.
func (v *Volume) String() string {
	name := v.Name
	if v.Claim != "" {
		name = "the volume of claim " + v.Claim
	}
	if v.Fault != nil {
		return fmt.Sprintf("%s does not come back: %v", name, v.Fault)
	}
	return fmt.Sprintf("%s, as of %s, %s", name, v.version.Time.Local().Format("2006-01-02 15:04"), v.Backup.Status.Size)
}

// Volumes returns the volumes of the state that kedge made.
func (s *State) Volumes(ctx context.Context) ([]*Volume, error) {
	var backups []*volumebackups.VolumeBackup
	found := map[string]*Volume{}
	_, _, err := s.Export(ctx, func(event *mvccpb.Event) error {
		key := string(event.Kv.Key)
		if !strings.HasPrefix(key, backupsKey) && !strings.HasPrefix(key, volumesKey) {
			return nil
		}
		object, err := decode(event.Kv.Value)
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if strings.HasPrefix(key, backupsKey) {
			v, err := volumebackups.Read(object)
			backups = append(backups, v)
			return err
		}
		var volume corev1.PersistentVolume
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &volume); err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if _, ours := localstorage.NodeOf(&volume); ours {
			v := &Volume{Name: volume.Name}
			if claim := volume.Spec.ClaimRef; claim != nil {
				v.Claim = claim.Namespace + "/" + claim.Name
			}
			found[v.Name] = v
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	store, err := s.backup.volumes()
	if err != nil {
		return nil, err
	}
	newest := volumebackups.Newest(backups)
	for name, v := range found {
		if v.Backup = newest[name]; v.Backup == nil {
			v.Fault = errNoBackup
			continue
		}
		if v.version, v.Fault = store.Version(ctx, name, *v.Backup.Status.Version); v.Fault == nil {
			v.secret, v.Fault = v.version.OpenKey(s.backup.key)
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *Volume) int { return strings.Compare(a.Claim+"/"+a.Name, b.Claim+"/"+b.Name) }), ctx.Err()
}

// volumes opens the store of the contents of volumes.
func (b *Backup) volumes() (*volumes.Store, error) {
	return volumes.Reader(b.place, b.key.Names())
}

// WriteVolume writes the contents of a volume, a tar archive, to w. It verifies each part before it writes it.
func (s *State) WriteVolume(ctx context.Context, v *Volume, w io.Writer) error {
	if v.Fault != nil {
		return v.Fault
	}
	store, err := s.backup.volumes()
	if err != nil {
		return err
	}
	return store.Restore(ctx, v.version, v.secret, w, nil)
}

// leaveVolumes tells the server, before its first start, which volumes come back.
func leaveVolumes(dir datadir.Dir, all []*Volume) error {
	lost := map[string]volumebackups.Lost{}
	for _, v := range all {
		if v.Fault == nil {
			lost[v.Name] = volumebackups.Lost{Ref: *v.Backup.Status.Version, Time: v.version.Time, Secret: v.secret}
		}
	}
	text, err := json.Marshal(lost)
	if err != nil {
		return fmt.Errorf("encode the volumes that come back: %w", err)
	}
	return datadir.WriteFile(dir.BackupVolumes(), text, 0o600)
}
