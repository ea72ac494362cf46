package machines

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// small is below how much memory, in MiB, a machine is shown to live with its pods for a long time.
const small = 1500

func onSmall(m machine) bool { return m.memory > 0 && m.memory < small }
func onLarge(m machine) bool { return !onSmall(m) && withVersion2(m) }

const (
	// crowd is how many pods a small machine runs, and longTime how long.
	crowd    = 10
	longTime = time.Hour
)

const crowdObject = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: %d
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %s, command: [sleep, "1000000"]}]
`

// lives wants a small machine to run ten pods for an hour, the second half with swap, while neither kedge nor a
// pod is killed.
func lives(t *testing.T, l *life) {
	l.apply(t, fmt.Sprintf(crowdObject, crowd, image.BusyboxName))
	defer func() {
		l.kubectl(t, "delete deployment crowd --cascade=foreground")
		l.sh(t, "swapoff /swap; rm -f /swap")
	}()
	l.kubectl(t, "rollout status deployment/crowd --timeout=15m")
	pid := l.pid(t)
	half := strconv.Itoa(int((longTime / 2).Minutes()))
	for _, part := range []string{"without swap", "with swap"} {
		if part == "with swap" {
			l.sh(t, "fallocate -l 512M /swap && chmod 600 /swap && mkswap /swap && swapon /swap")
		}
		for range 6 {
			time.Sleep(longTime / 12)
			l.ready(t)
		}
		t.Logf("%s, after %s minutes: %s kB of kedge's memory, and of the machine's\n%s", part, half,
			l.sh(t, "grep -h VmRSS /proc/"+l.pid(t)+"/status | grep -o '[0-9]*'"), l.sh(t, "head -n 3 /proc/meminfo"))
	}
	if now := l.pid(t); now != pid {
		t.Errorf("kedge was process %s and is %s", pid, now)
	}
	if restarts := l.kubectl(t, "get pods -l app=crowd -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}'"); strings.Trim(restarts, "0 ") != "" {
		t.Errorf("the pods have been restarted: %s times", restarts)
	}
	l.answers(t)
}

// losesDisk has kedge's data on a disk of its own, which then fails. When the disk is back, everything that was
// acknowledged is there.
func losesDisk(t *testing.T, l *life) {
	const data = "/var/lib/kedge"
	l.sh(t, `modprobe -q dm_mod dm_flakey; set -e
		fallocate -l 3G /disk.img
		losetup /dev/loop20 /disk.img
		dmsetup create data --table "0 $(blockdev --getsz /dev/loop20) linear /dev/loop20 0"
		mkfs.ext4 -q /dev/mapper/data`)
	l.sh(t, l.init().stop+" && kedge killall")
	l.sh(t, "set -e; mount -o errors=remount-ro /dev/mapper/data /mnt; cp -a "+data+"/. /mnt/; umount /mnt; mount -o errors=remount-ro /dev/mapper/data "+data)
	l.sh(t, l.init().start)
	l.works(t)
	mark := l.mark(t)

	l.sh(t, `dmsetup suspend --noflush --nolockfs data && dmsetup load data --table "0 $(blockdev --getsz /dev/loop20) error" && dmsetup resume data`)
	harness.Eventually(t, patience, "a write to fail", func() error {
		if _, err := l.tryKubectl("create configmap lost-$(date +%s%N) --request-timeout=20s"); err == nil {
			return errors.New("the API has acknowledged one on a disk that fails")
		}
		return nil
	})
	l.eventually(t, "journalctl -b -u kedge -o cat --no-pager | grep -i -E 'input/output error|read-only file system|disk I/O error'")
	t.Logf("kedge status on a disk that fails:\n%s", func() string { output, _ := l.try("timeout 60 kedge status"); return output }())

	l.sh(t, `dmsetup suspend --noflush --nolockfs data && dmsetup load data --table "0 $(blockdev --getsz /dev/loop20) linear /dev/loop20 0" && dmsetup resume data`)
	// killall ends all that holds the disk. It may fail only because it can remove nothing there. After an error Linux 6.12 refuses
	// to open any file of the file system, and other versions make it read-only.
	if output, err := l.try(l.init().stop + "; kedge killall"); err != nil && !strings.Contains(output, "read-only file system") && !strings.Contains(output, "input/output error") {
		t.Errorf("kedge killall: %v\n%s", err, output)
	}
	l.sh(t, "set -e; umount "+data+"; fsck.ext4 -p /dev/mapper/data || [ $? = 1 ]; mount -o errors=remount-ro /dev/mapper/data "+data)
	l.sh(t, l.init().start)
	l.works(t)
	l.kubectl(t, "get configmap "+mark)

	l.sh(t, l.init().stop+" && kedge killall")
	l.sh(t, "set -e; mount --bind / /mnt; cp -a "+data+"/. /mnt"+data+"/; rmdir /mnt"+data+"/lost+found; umount /mnt "+data+"; dmsetup remove data; losetup -d /dev/loop20; rm /disk.img")
	l.sh(t, l.init().start)
	l.works(t)
	l.containers = l.ids(t)
}
