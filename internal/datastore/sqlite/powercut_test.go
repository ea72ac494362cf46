package sqlite

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

const powerCuts = 8

// A power cut at any time loses no durable key that was acknowledged, and leaves
// a database that can be read. Without syncs keys are lost, which proves that the
// test would notice it.
func TestPowerCut(t *testing.T) {
	if !privately(t) {
		return
	}
	for setting, safe := range map[string]bool{"": true, "PRAGMA synchronous = OFF": false} {
		t.Run(setting, func(t *testing.T) {
			folder := shortDir(t)
			disk := slowfs.MountHere(t, config(folder).Dir, slowfs.Limits{})
			acknowledged := map[string]bool{}
			var damage error
			for range powerCuts {
				if damage = writeUntilCut(t, folder, setting, disk, acknowledged); damage != nil {
					break
				}
			}
			if len(acknowledged) < 10*powerCuts {
				t.Errorf("only %d writes were acknowledged: the test shows nothing", len(acknowledged))
			}
			lost := 0
			if damage == nil {
				lost = countLost(t, folder, acknowledged)
			}
			t.Logf("of %d writes %d were lost, damage: %v", len(acknowledged), lost, damage)
			if ok := lost == 0 && damage == nil; ok != safe {
				t.Errorf("safe: %v, want %v", ok, safe)
			}
		})
	}
}

// writeUntilCut has a child write, and cuts the power of the disk at some moment.
// It adds the acknowledged keys. It returns an error if the child could not use
// what the previous cut had left.
func writeUntilCut(t *testing.T, folder, setting string, disk *slowfs.Disk, acknowledged map[string]bool) error {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childVariable+"=writer:"+folder, settingVariable+"="+setting, "holder=a")
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() && lines.Text() != "ready" {
		if reason, failed := strings.CutPrefix(lines.Text(), "failed "); failed {
			_ = command.Wait()
			return errors.New(reason)
		}
	}
	cut := make(chan error, 1)
	time.AfterFunc(time.Duration(200+rand.IntN(800))*time.Millisecond, func() {
		cut <- disk.Cut()
		_ = command.Process.Kill()
	})
	for lines.Scan() {
		// After the power cut, writes fail.
		if key, _, ok := strings.Cut(lines.Text(), " "); ok && key != "failed" {
			acknowledged[key] = true
		}
	}
	_ = command.Wait()
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	disk.PowerOn()
	return nil
}

// countLost returns how many keys are not in the database in folder.
func countLost(t *testing.T, folder string, acknowledged map[string]bool) (lost int) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(config(folder).Dir, "state.db")); err != nil {
		return len(acknowledged)
	}
	r := run(t, folder)
	for key := range acknowledged {
		found, err := r.Get(context.Background(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Kvs) == 0 {
			lost++
		}
	}
	return lost
}
