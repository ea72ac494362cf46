package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/assets"
)

const (
	storageFile = "build/bench/storage.json"
	// storageRounds is how often each place is measured, in turns with the others.
	storageRounds = 5
	// fioSize is the size of fio's file, in a claim of storageSize.
	fioSize     = "256M"
	storageSize = "1Gi"
)

// The places that are compared: an emptyDir, which is a directory on the node's file system, and
// claims of kedge's StorageClasses, by the names of these.
const (
	placeBare      = "bare directory"
	placeUnlimited = "local-unlimited"
	placeLocal     = "local"
)

var places = []string{placeBare, placeUnlimited, placeLocal}

// storageResult has the results for a place in one round.
type storageResult struct {
	// Mounted is the time in seconds from the creation of a claim and a pod until the pod is
	// ready.
	Mounted float64 `json:"mountedSeconds"`
	// Write and Read are sequential, in bytes per second.
	Write float64 `json:"writeBytesPerSecond"`
	Read  float64 `json:"readBytesPerSecond"`
	// RandomReads and SyncedWrites are operations of 4 KiB per second.
	RandomReads  float64 `json:"randomReadsPerSecond"`
	SyncedWrites float64 `json:"syncedWritesPerSecond"`
}

func storageColumns() []figure[storageResult] {
	return []figure[storageResult]{
		{"claim to pod, s", 1, func(r storageResult) float64 { return r.Mounted }},
		{"write, MiB/s", mebibyte, func(r storageResult) float64 { return r.Write }},
		{"read, MiB/s", mebibyte, func(r storageResult) float64 { return r.Read }},
		{"random reads/s", 1, func(r storageResult) float64 { return r.RandomReads }},
		{"synced writes/s", 1, func(r storageResult) float64 { return r.SyncedWrites }},
	}
}

// fioWork is a job of fio.
type fioWork struct {
	args string
	note func(*storageResult, fioResult)
}

// fioWorks are run in this order. The first one makes the file. A write job ends when all data are
// on the disk: otherwise a volume that is a file would only fill the page cache.
var fioWorks = []fioWork{
	{"--rw=write --bs=1M --end_fsync=1", func(r *storageResult, f fioResult) { r.Write = f.Write.Bandwidth }},
	{"--rw=read --bs=1M", func(r *storageResult, f fioResult) { r.Read = f.Read.Bandwidth }},
	{"--rw=randread --bs=4k --runtime=2 --time_based", func(r *storageResult, f fioResult) { r.RandomReads = f.Read.IOPS }},
	{"--rw=randwrite --bs=4k --runtime=2 --time_based --fdatasync=1", func(r *storageResult, f fioResult) { r.SyncedWrites = f.Write.IOPS }},
}

// fioResult is a job in fio's JSON output.
type fioResult struct {
	Read, Write struct {
		Bandwidth float64 `json:"bw_bytes"`
		IOPS      float64 `json:"iops"`
	}
}

// fioCommand returns the command for a job of fio on a file.
func fioCommand(work fioWork, file string) []string {
	command := []string{"/usr/bin/fio", "--name=bench", "--ioengine=psync", "--size=" + fioSize, "--filename=" + file, "--output-format=json"}
	return append(command, strings.Fields(work.args)...)
}

// readFio reads the output of fio.
func readFio(output string) (fioResult, error) {
	var report struct{ Jobs []fioResult }
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		return fioResult{}, fmt.Errorf("read fio's report: %w: %s", err, output)
	}
	if len(report.Jobs) != 1 {
		return fioResult{}, fmt.Errorf("read fio's report: it is of %d jobs", len(report.Jobs))
	}
	return report.Jobs[0], nil
}

// placeVolume returns a pod's volume at a place: a claim called name, unless the place is bare.
func placeVolume(place, name string) corev1.Volume {
	volume := corev1.Volume{Name: name}
	if place == placeBare {
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
	} else {
		volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	}
	return volume
}

// makeClaim makes a claim at a place, unless the place is bare.
func makeClaim(ctx context.Context, client kubernetes.Interface, place, name string) error {
	if place == placeBare {
		return nil
	}
	_, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &place,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(storageSize)}},
		},
	}, metav1.CreateOptions{})
	return err
}

// mountClaim makes a claim at a place and a pod that mounts it, and returns the seconds until the
// pod is Ready. It then removes both.
func mountClaim(ctx context.Context, client kubernetes.Interface, place string) (seconds float64, err error) {
	const name = "mounted"
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, fmt.Errorf("watch pod: %w", err)
	}
	began := time.Now()
	if err := makeClaim(ctx, client, place, name); err != nil {
		return 0, fmt.Errorf("create claim: %w", err)
	}
	_, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Volumes:                       []corev1.Volume{placeVolume(place, name)},
			Containers: []corev1.Container{{
				Name: name, Image: assets.PauseImage, ImagePullPolicy: corev1.PullIfNotPresent,
				VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/data"}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create pod: %w", err)
	}
	if err := await(events, podReady); err != nil {
		return 0, fmt.Errorf("wait for pod: %w: %s", err, lastEvents(client))
	}
	seconds = time.Since(began).Seconds()
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, fmt.Errorf("delete pod: %w", err)
	}
	if place != placeBare {
		if err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return 0, fmt.Errorf("delete claim: %w", err)
		}
	}
	return seconds, mountedGone(ctx, client, name)
}

// mountedGone waits until neither the pod nor a volume of the claim exists.
func mountedGone(ctx context.Context, client kubernetes.Interface, name string) error {
	there := func() (bool, error) {
		pods, err := client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil || len(pods.Items) > 0 {
			return true, err
		}
		volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return true, err
		}
		return slices.ContainsFunc(volumes.Items, func(v corev1.PersistentVolume) bool {
			return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == name
		}), nil
	}
	for {
		left, err := there()
		if err == nil && !left {
			return nil
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait for pod and volume to go: %w", errors.Join(ended, err))
		}
	}
}

// storageReport has the results for claims and for bare directories.
type storageReport struct {
	origin
	// Rounds has the results by place.
	Rounds map[string][]storageResult `json:"rounds"`
}

// Table returns the medians, and their ratios to those of a bare directory, as text.
func (r *storageReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%smedian of %d rounds; behind each value its ratio to that of a bare directory; files of %s\n\n", r.heading(), storageRounds, fioSize)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	compare(table, "", places, storageColumns(), r.Rounds)
	table.Flush()
	return text.String()
}
