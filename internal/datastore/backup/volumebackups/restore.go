package volumebackups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
)

// restoreSecret is the Secret in kube-system with what is to come back, by the names of volumes.
const restoreSecret = "kedge-backup-restore"

// Lost is a volume whose contents come back. Only the recovery key opens Secret, so a restore opens it.
type Lost struct {
	volumes.Ref
	Time time.Time `json:"time"`
	// Secret is the secret key of the volume.
	Secret string `json:"secret"`
}

// inherit puts what a restore has left into the cluster.
func (k *VolumeBackups) inherit(ctx context.Context) error {
	text, err := os.ReadFile(k.cfg.Inherited)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the restore has left: %w", err)
	}
	var lost map[string]Lost
	if err := json.Unmarshal(text, &lost); err != nil {
		return fmt.Errorf("read %s: %w", k.cfg.Inherited, err)
	}
	data := map[string][]byte{}
	for name, volume := range lost {
		if data[name], err = json.Marshal(volume); err != nil {
			return fmt.Errorf("encode volume %s: %w", name, err)
		}
	}
	if err := k.api.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, restoreSecret, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("replace what an earlier restore has left: %w", err)
	}
	_, err = k.api.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: restoreSecret, Namespace: metav1.NamespaceSystem}, Data: data,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("keep what the restore has left: %w", err)
	}
	for name, volume := range lost {
		if err := k.annotate(ctx, name, volumedata.RestoreAnnotation, volume.Time.UTC().Format(time.RFC3339)); err != nil {
			return err
		}
	}
	if err := os.Remove(k.cfg.Inherited); err != nil {
		return fmt.Errorf("remove what the restore has left: %w", err)
	}
	return nil
}

// errBusy says that other volumes come first.
var errBusy = errors.New("other volumes are being restored at the moment")

// Restore implements volumedata.Server.
func (k *VolumeBackups) Restore(ctx context.Context, node, name string, take func(volumedata.Contents) error) error {
	volume, err := k.volume(ctx, node, name)
	if err != nil {
		return err
	}
	if volume.Annotations[volumedata.RestoreAnnotation] == "" {
		return volumedata.ErrNotAsked
	}
	select {
	case k.restoring <- struct{}{}:
		defer func() { <-k.restoring }()
	default:
		return errBusy
	}
	secret, err := k.api.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, restoreSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read what is to be restored: %w", err)
	}
	text, ok := secret.Data[name]
	if !ok {
		return errors.Join(volumedata.ErrNotAsked, k.annotate(ctx, name, volumedata.RestoreAnnotation, ""))
	}
	var lost Lost
	if err := json.Unmarshal(text, &lost); err != nil {
		return fmt.Errorf("read what is to be restored of volume %s: %w", name, err)
	}
	store, err := k.cfg.Store(ctx, k.api)
	if err != nil {
		return err
	}
	version, err := store.Version(ctx, name, lost.Ref)
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { write.CloseWithError(store.Restore(ctx, version, lost.Secret, write, nil)) }()
	err = take(volumedata.Contents{About: version.About, Time: version.Time, Size: version.Size, Archive: read})
	read.CloseWithError(err)
	return err
}

// restored notes that a volume is there again. Its key is not needed any more.
func (k *VolumeBackups) restored(ctx context.Context, node, name string) error {
	volume, err := k.volume(ctx, node, name)
	if err != nil {
		return err
	}
	if volume.Annotations[volumedata.RestoreAnnotation] == "" {
		return nil
	}
	secrets := k.api.CoreV1().Secrets(metav1.NamespaceSystem)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		secret, err := secrets.Get(ctx, restoreSecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		delete(secret.Data, name)
		if len(secret.Data) == 0 {
			return secrets.Delete(ctx, restoreSecret, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &secret.ResourceVersion}})
		}
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("note that volume %s is restored: %w", name, err)
	}
	return k.annotate(ctx, name, volumedata.RestoreAnnotation, "")
}
