package keep

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestUnpluggedDisk keeps the backup on a disk that is not there when kedge starts, and is taken out while it is written. kedge waits for it and says so, writes
// nothing where the disk was, and goes on when it is back. Then the box is lost, and the disk is not.
func TestUnpluggedDisk(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	network := harness.NewNetwork(t)
	host := network.NewHost(t, "server-1")
	disk := t.TempDir()
	in := func(words ...string) {
		t.Helper()
		if output, err := host.Command(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", words, err, output)
		}
	}
	plug := func() {
		t.Helper()
		in("mkdir", "-p", "/opt/usb")
		in("mount", "--bind", disk, "/opt/usb")
	}
	host.WriteFile("/etc/kedge/config.yaml", "disable-agent: true\nbackup: file:///opt/usb/kedge\nbackup-interval: 1s\n")
	server := host.StartServer(t)
	server.WaitAPI()
	c := cluster.Of(t, server)
	said := func(want string) {
		t.Helper()
		c.Eventually("kedge status to say it", func() error {
			output, err := host.Kedge(t.Context(), "status").CombinedOutput()
			if err == nil || !strings.Contains(string(output), want) {
				return fmt.Errorf("%v, want %q:\n%s", err, want, output)
			}
			return nil
		})
	}
	plug()
	key := makeKey(t, host)
	host.WriteFile("/opt/key", key)
	in("umount", "/opt/usb")
	server.Terminate()
	server.Start()
	server.WaitAPI()
	said("the place of the backup is not there")
	plug()
	restore := []string{"restore", "file:///opt/usb/kedge", "--key", "/opt/key"}
	w := &writer{t: t}
	done := make(chan struct{})
	go func() {
		w.write(server.Client())
		close(done)
	}()
	reached := func(marker string) {
		t.Helper()
		last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		inBackup(c, host, last, restore)
	}
	reached("begun")
	for i := range 3 {
		in("umount", "--lazy", "/opt/usb")
		said("the place of the backup is not there")
		in("rmdir", "/opt/usb") // it is empty
		plug()
		reached(fmt.Sprintf("again-%d", i))
	}
	died := time.Now()
	host.LoseDisk()
	server.Exited()
	<-done
	plug()
	host.WriteFile("/opt/key", key)
	t.Log(run(t, host, restore...))
	server = host.StartServer(t)
	server.WaitAPI()
	w.found(server.Client(), died.Add(-mayLose()))
}
