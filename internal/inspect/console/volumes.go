package console

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
)

// claimRow is a claim with its last backup.
type claimRow struct {
	Namespace, Name, State, Size, Class string
	Well                                bool
	Created                             time.Time
	// Backup says of the last VolumeBackup how it ended, and Saved when. They are empty without one.
	Backup string
	Saved  string
}

// volumes lists the claims of all namespaces that the user may read, with their backups.
var volumes = view{"volumes", says("Volumes"), func(v *visit) any {
	namespace := ""
	claims := listed(v, "claims of all namespaces", v.Clients.Kubernetes.CoreV1().PersistentVolumeClaims("").List)
	if claims == nil {
		namespace = v.Namespace
		claims = listed(v, "claims", v.Clients.Kubernetes.CoreV1().PersistentVolumeClaims(namespace).List)
	}
	var rows []claimRow
	if claims != nil {
		backups := v.lastBackups(namespace)
		for _, claim := range claims.Items {
			size := claim.Status.Capacity[corev1.ResourceStorage]
			row := claimRow{Namespace: claim.Namespace, Name: claim.Name, State: string(claim.Status.Phase), Size: size.String(), Well: claim.Status.Phase == corev1.ClaimBound, Created: claim.CreationTimestamp.Time}
			if claim.Spec.StorageClassName != nil {
				row.Class = *claim.Spec.StorageClassName
			}
			if last := backups[claim.Namespace+"/"+claim.Name]; last != nil {
				row.Backup, _, _ = unstructured.NestedString(last.Object, "status", "phase")
				row.Saved = last.GetCreationTimestamp().UTC().Format("2006-01-02 15:04")
			}
			rows = append(rows, row)
		}
	}
	return struct {
		Now  time.Time
		Rows []claimRow
	}{v.now, rows}
}}

// lastBackups returns the newest VolumeBackup of each claim.
func (v *visit) lastBackups(namespace string) map[string]*unstructured.Unstructured {
	all := listed(v, "VolumeBackups", v.Clients.Dynamic.Resource(volumebackups.Resource).Namespace(namespace).List)
	newest := map[string]*unstructured.Unstructured{}
	if all == nil {
		return newest
	}
	for i := range all.Items {
		b := &all.Items[i]
		claim, _, _ := unstructured.NestedString(b.Object, "spec", "claim")
		key := b.GetNamespace() + "/" + claim
		if known := newest[key]; known == nil || b.GetCreationTimestamp().After(known.GetCreationTimestamp().Time) {
			newest[key] = b
		}
	}
	return newest
}
