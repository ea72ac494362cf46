package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// childVariable is set in a copy of the test binary that migrates and is then
// killed, or fails.
const childVariable = "KEDGE_TEST_CHILD"

// migrateAsChild migrates the database in folder. If a size in bytes is set, etcd's
// folder is on a file system of that size.
func migrateAsChild(folder, size string) int {
	cfg := Config{Dir: filepath.Join(folder, "etcd"), Node: "node", Address: "127.77.1.1"}
	if size != "" {
		err := os.MkdirAll(cfg.Dir, 0o700)
		if err == nil {
			err = syscall.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "size="+size)
		}
		if err != nil {
			fmt.Println(err)
			return 2
		}
	}
	sqlite := sqlite.New(sqlite.Config{Dir: folder})
	if err := Migrate(context.Background(), cfg, sqlite.Export); err != nil {
		fmt.Println(err)
		left, _ := os.ReadDir(cfg.Dir)
		fmt.Println("left:", left)
		return 1
	}
	if _, err := sqlite.Retire(".old"); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// child runs migrateAsChild in a process of its own.
func child(t *testing.T, folder, size string) *exec.Cmd {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), childVariable+"="+folder+":"+size)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if size != "" {
		command.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	return command
}

// TestMigrateKilled kills the migration at random times. Before the migration has
// succeeded the state is in SQLite, and afterwards all of it is in etcd.
func TestMigrateKilled(t *testing.T) {
	folder := t.TempDir()
	s := startSQLite(t, folder)
	s.fill(10_000)
	want, _ := all(t, s.client)
	s.stop()

	began := time.Now()
	whole := t.TempDir()
	if err := os.CopyFS(whole, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	if output, err := child(t, whole, "").CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v: %s", err, output)
	}
	takes := time.Since(began)
	const kills = 25
	killed, done := 0, 0
	for killed < kills {
		command := child(t, folder, "")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(rand.N(takes), func() { _ = command.Process.Kill() })
		err := command.Wait()
		timer.Stop()
		state, _ := command.ProcessState.Sys().(syscall.WaitStatus)
		switch {
		case state.Signaled():
			killed++
		case err != nil:
			t.Fatal(err)
		}
		if !Exists(filepath.Join(folder, "etcd")) {
			continue
		}
		// However far the migration came, what is there is complete. It is
		// compared, and the migration begins again.
		if output, err := child(t, folder, "").CombinedOutput(); err != nil {
			t.Fatalf("migrate again after a kill: %v: %s", err, output)
		}
		if done++; done == 1 || killed == kills {
			wantMember(t, folder, want)
		}
		if err := os.RemoveAll(filepath.Join(folder, "etcd")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "state.db.old"), filepath.Join(folder, "state.db")); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("killed %d times, in which it was complete %d times", killed, done)
	if output, err := child(t, folder, "").CombinedOutput(); err != nil {
		t.Fatalf("migrate for the last time: %v: %s", err, output)
	}
	wantMember(t, folder, want)
}

// wantMember starts the member in folder and compares its content.
func wantMember(t *testing.T, folder string, want map[string]*mvccpb.KeyValue) {
	t.Helper()
	for _, left := range []string{"etcd/migrating", "state.db", "state.db-wal"} {
		if _, err := os.Stat(filepath.Join(folder, left)); err == nil {
			t.Errorf("%s is left", left)
		}
	}
	h := newHost(t, 44, nil)
	if err := os.MkdirAll(h.dir.Etcd(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(h.dir.Etcd(), os.DirFS(filepath.Join(folder, "etcd"))); err != nil {
		t.Fatal(err)
	}
	h.start(nil)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	got, _ := all(t, client.Client)
	wantSame(t, got, want)
	if err := h.end(); err != nil {
		t.Error(err)
	}
}

// TestMigrateFullDisk wants an error, freed space, and an unchanged SQLite
// database.
func TestMigrateFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	folder := t.TempDir()
	s := startSQLite(t, folder)
	s.fill(2000)
	want, revision := all(t, s.client)
	s.stop()
	// The log needs 64 MB, the database more than 2 MB.
	for _, size := range []string{"1m", "65m"} {
		output, err := child(t, folder, size).CombinedOutput()
		if err == nil || strings.Count(string(output), "free some space") != 1 || !strings.Contains(string(output), "left: [- name]") {
			t.Errorf("with %s: got %v and\n%s\nwant an error that says once to free space", size, err, output)
		}
	}
	s = startSQLite(t, folder)
	got, now := all(t, s.client)
	if len(got) != len(want) || now != revision {
		t.Errorf("SQLite has %d keys at revision %d, and had %d at %d", len(got), now, len(want), revision)
	}
}
