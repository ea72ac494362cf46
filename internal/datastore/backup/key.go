package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

// newKey is what a server answers to `kedge backup key`.
type newKey struct {
	// Key is the secret recovery key. The server does not keep it.
	Key string `json:"key"`
	// Warning is about the place, or empty.
	Warning string `json:"warning,omitempty"`
}

// Routes implements localapi.Part, for `kedge backup key` on a running server.
func (b *Backup) Routes() []localapi.Route {
	return []localapi.Route{
		localapi.Answer(localapi.MakeBackupKey, func(ctx context.Context, _ localapi.Nothing) (newKey, error) {
			cluster, err := b.cluster()
			if err != nil {
				return newKey{}, err
			}
			return b.makeKey(ctx, cluster)
		}),
	}
}

// AskKey asks the server of this host to make a recovery key. The warning is about the place, or empty.
func AskKey(ctx context.Context, kedge *localapi.Client) (key, warning string, err error) {
	made, err := localapi.Ask[newKey](ctx, kedge, localapi.MakeBackupKey, nil)
	return made.Key, made.Warning, err
}

// errHasKey says that there is a key.
var errHasKey = errors.New("the cluster has a recovery key. It was shown when it was made, and cannot be shown again. " +
	"If it is lost: set backup to another folder, restart kedge, and run this again. Then a backup with another key begins there")

// makeKey makes a recovery key, and lets the cluster write.
func (b *Backup) makeKey(ctx context.Context, cluster kubernetes.Interface) (newKey, error) {
	if b.cfg.Location == "" {
		return newKey{}, errors.New("there is no place for a backup: set backup to s3://ENDPOINT/BUCKET/FOLDER or to file:///FOLDER, and restart kedge")
	}
	at, err := b.cfg.Open(ctx, cluster)
	if err != nil {
		return newKey{}, err
	}
	if err := at.Prepare(ctx); err != nil {
		return newKey{}, err
	}
	if err := b.forget(ctx, cluster, at); err != nil {
		return newKey{}, err
	}
	key, err := chain.NewRecoveryKey()
	if err != nil {
		return newKey{}, err
	}
	log, err := chain.Open(ctx, at, key.Root())
	if err != nil {
		return newKey{}, err
	}
	writer, err := key.Appoint(1, nil, b.cfg.Now())
	if err != nil {
		return newKey{}, err
	}
	// Whoever is stopped between the two steps can begin anew: forget sees to that.
	if err := KeepWriter(ctx, cluster, writer); err != nil {
		return newKey{}, err
	}
	if err := log.Admit(ctx, writer); err != nil {
		return newKey{}, err
	}
	b.wake.Notify()
	made := newKey{Key: key.String()}
	if place.SameDisk(at, b.cfg.Folder) {
		made.Warning = fmt.Sprintf("%s is on the same file system as %s: whoever loses that disk loses the backup too. If another disk was to be mounted there, "+
			"remove the folder, mount the disk, and run this again", at, b.cfg.Folder)
	}
	return made, nil
}

// forget removes a key of the cluster that this place does not know: making the key was interrupted, or the place is a new one.
// forget fails if the place knows the key.
func (b *Backup) forget(ctx context.Context, cluster kubernetes.Interface, at place.Place) error {
	writer, err := readWriter(ctx, cluster)
	if errors.Is(err, errNoKey) {
		return nil
	}
	if err != nil {
		return err
	}
	log, err := chain.Open(ctx, at, writer.Appointment.Root)
	if err != nil {
		return err
	}
	if len(log.Appointments()) > 0 {
		return errHasKey
	}
	if err := cluster.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, SecretName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the key of the backup: %w", err)
	}
	return nil
}

// inherit puts the key that a restore has left into the cluster, in the place of the one before.
func (b *Backup) inherit(ctx context.Context, cluster kubernetes.Interface) error {
	text, err := os.ReadFile(b.cfg.Inherited)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the key of the backup: %w", err)
	}
	var w chain.Writer
	if err := json.Unmarshal(text, &w); err != nil {
		return fmt.Errorf("read %s: %w", b.cfg.Inherited, err)
	}
	if err := cluster.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, SecretName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("replace the key of the backup: %w", err)
	}
	if err := KeepWriter(ctx, cluster, &w); err != nil {
		return err
	}
	if err := os.Remove(b.cfg.Inherited); err != nil {
		return fmt.Errorf("remove what the restore has left: %w", err)
	}
	return nil
}

// KeepWriter puts into the cluster what it needs in order to write.
func KeepWriter(ctx context.Context, cluster kubernetes.Interface, w *chain.Writer) error {
	text, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("encode the key of the backup: %w", err)
	}
	_, err = cluster.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName, Namespace: metav1.NamespaceSystem},
		Data:       map[string][]byte{secretKey: text},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("keep the key of the backup: %w", err)
	}
	return nil
}
