// Package fulldisk takes the space for the database away from a running server, and then the right
// to write. The API must refuse writes and say what to do, and reads must keep working. When there
// is space again, kedge must continue without loss. A pod that fills the disk must be evicted.
package fulldisk

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

const (
	namespace = "default"
	patience  = time.Minute
	// refused is how long nothing can be written. It is longer than the control plane waits for
	// its Lease, and longer than a node's grace period.
	refused = 75 * time.Second
	// mostLines is how many lines the server may log meanwhile, onto the same disk perhaps.
	mostLines = 40
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestDiskRefusesWrites(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	disk := slowfs.Mount(t, host, "/var/lib/kedge/server/db", slowfs.Limits{})
	server := host.StartServer(t)
	server.WaitReady()
	process := server.Process().Pid
	api := server.Client().CoreV1().ConfigMaps(namespace)
	write := func(name string) error {
		_, err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"name": name}}, metav1.CreateOptions{})
		return err
	}
	var acknowledged []string
	for _, fault := range []struct {
		name  string
		cause unix.Errno
		hint  string
	}{
		{"full", unix.ENOSPC, "df -h"},
		{"read-only", unix.EROFS, "mounted read-write"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for i := range 20 {
				name := fmt.Sprintf("%s-before-%d", fault.name, i)
				if err := write(name); err != nil {
					t.Fatal(err)
				}
				acknowledged = append(acknowledged, name)
			}
			before := len(server.Log())
			disk.Refuse(fault.cause)
			refusals := 0
			for i, end := 0, time.Now().Add(refused); time.Now().Before(end); i++ {
				name := fmt.Sprintf("%s-meanwhile-%d", fault.name, i)
				switch err := write(name); {
				case err == nil:
					acknowledged = append(acknowledged, name)
					continue
				case !strings.Contains(err.Error(), fault.hint):
					t.Errorf("a write fails with %v, and without %q", err, fault.hint)
				}
				refusals++
				if _, err := api.Get(t.Context(), acknowledged[0], metav1.GetOptions{}); err != nil {
					t.Errorf("a read fails with %v", err)
				}
				time.Sleep(time.Second)
			}
			wantQuiet(t, server.Log()[before:])
			disk.Refuse(0)
			if refusals == 0 {
				t.Error("no write was refused, so the test shows nothing")
			}
			name := fault.name + "-after"
			harness.Eventually(t, patience, "writes to succeed again", func() error { return write(name) })
			acknowledged = append(acknowledged, name)
			server.WaitReady()
			if now := server.Process().Pid; now != process {
				t.Errorf("kedge is process %d, and was %d", now, process)
			}
			for _, text := range []string{fault.hint, "succeed again"} {
				if !strings.Contains(server.Log(), text) {
					t.Errorf("the log does not say %q", text)
				}
			}
		})
	}
	server.Kill9()
	server.Start()
	server.WaitReady()
	for _, name := range acknowledged {
		if found, err := api.Get(t.Context(), name, metav1.GetOptions{}); err != nil || found.Data["name"] != name {
			t.Errorf("%s was acknowledged, and is %v, %v", name, found.Data, err)
		}
	}
}

var (
	message = regexp.MustCompile(`level=error .*?msg=("(?:[^"\\]|\\.)*"|\S+)`)
	pointer = regexp.MustCompile(`\b0x[0-9a-f]{9,16}\b`)
)

// wantQuiet wants few lines, none of level error twice, and no pointers of Go.
func wantQuiet(t *testing.T, said string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(said), "\n")
	t.Logf("%d lines while nothing can be written", len(lines))
	if len(lines) > mostLines {
		t.Errorf("%d lines, want at most %d", len(lines), mostLines)
	}
	times := map[string]int{}
	for _, line := range lines {
		if pointer.MatchString(line) {
			t.Errorf("a pointer in %s", line)
		}
		if found := message.FindStringSubmatch(line); found != nil {
			times[found[1]]++
		}
	}
	for text, count := range times {
		if count > 1 {
			t.Errorf("%d lines of level error say %s", count, text)
		}
	}
	if t.Failed() {
		t.Logf("the log:\n%s", said)
	}
}
