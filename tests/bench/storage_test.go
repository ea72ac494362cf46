package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// fioPod is the pod that runs fio.
const fioPod = "fio"

// TestStorage measures claims and a bare directory. It fails only if something does not work.
func TestStorage(t *testing.T) {
	origin, repository, archive := needFio(t)
	// The host has no disk of its own, because that would be a loop device too.
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	host.Preload(archive)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	runFio(c, places...)
	report := &storageReport{origin: origin, Rounds: map[string][]storageResult{}}
	for range storageRounds {
		for i, place := range places {
			result, err := measurePlace(c, place, folderOf(i))
			if err != nil {
				t.Fatalf("measure %s: %v", place, err)
			}
			fmt.Printf("%s: %+v\n", place, result)
			report.Rounds[place] = append(report.Rounds[place], result)
		}
	}
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, storageFile), report); err != nil {
		t.Fatal(err)
	}
}

// needFio returns what a benchmark with fio begins with: the origin of the report, the source tree, and the archive of fio's image.
func needFio(t *testing.T) (_ origin, repository, archive string) {
	t.Helper()
	harness.Require(t)
	harness.Need(t, "fio")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	from, err := newOrigin(repository)
	if err != nil {
		t.Fatal(err)
	}
	archive, err = image.Fio(repository)
	if err != nil {
		t.Fatal(err)
	}
	return from, repository, archive
}

// folderOf returns the folder at which fio's pod has the place with this number.
func folderOf(number int) string { return "place-" + strconv.Itoa(number) }

// runFio runs a pod with volumes at these places, and waits until it is ready.
func runFio(c *cluster.Cluster, places ...string) {
	c.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fioPod},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: fioPod, Image: image.FioName, Command: []string{"sleep", "1000000"}}}},
	}
	for i, place := range places {
		name := folderOf(i)
		if err := makeClaim(c.Context(), c.Client, place, name); err != nil {
			c.Fatal(err)
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, placeVolume(place, name))
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	// Just after the start the pods' service account may not exist yet.
	c.Eventually("the pod to be made", func() error {
		_, err := c.Client.CoreV1().Pods(cluster.Namespace).Create(c.Context(), pod, metav1.CreateOptions{})
		return err
	})
	c.Pod(fioPod)
}

// measurePlace measures a place once.
func measurePlace(c *cluster.Cluster, place, folder string) (result storageResult, err error) {
	if result.Mounted, err = mountClaim(c.Context(), c.Client, place); err != nil {
		return result, err
	}
	file := "/" + folder + "/file"
	for _, work := range fioWorks {
		// The data are read from the disk, whatever caches them.
		if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
			return result, fmt.Errorf("drop the page cache: %w", err)
		}
		output, err := cluster.OnNode(c.Server.Host, fioPod, fioCommand(work, file)...)
		if err != nil {
			return result, err
		}
		did, err := readFio(output)
		if err != nil {
			return result, err
		}
		work.note(&result, did)
	}
	_, err = cluster.OnNode(c.Server.Host, fioPod, "rm", file)
	return result, err
}
