package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// startFails runs a datastore in folder that must not become ready, and returns
// its error.
func startFails(t *testing.T, folder string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := New(config(folder)).Run(ctx, func() { t.Error("ready"); cancel() })
	if err == nil {
		t.Fatal("no error")
	}
	if errors.Is(err, context.Canceled) {
		t.Errorf("the error passes for a cancellation: %v", err)
	}
	checkNothingLeft(t, folder)
	return err
}

// used makes a database with some content, which is no longer served, and returns
// its file. The write-ahead log has been copied into it.
func used(t *testing.T, folder string) string {
	t.Helper()
	r := run(t, folder)
	for i := range 200 {
		if _, err := create(r.Client, fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	r.stop(t)
	return filepath.Join(config(folder).Dir, "state.db")
}

// execute runs statements on the database in file as a user would.
func execute(t *testing.T, file string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
}

// overwrite writes content into file at offset.
func overwrite(t *testing.T, file string, offset int64, content []byte) {
	t.Helper()
	opened, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if _, err := opened.WriteAt(content, offset); err != nil {
		t.Fatal(err)
	}
}

func TestUnusableDatabase(t *testing.T) {
	noise := bytes.Repeat([]byte("kedge"), 5000)
	for name, test := range map[string]struct {
		harm func(t *testing.T, file string)
		want string
	}{
		"no database": {func(t *testing.T, file string) { overwrite(t, file, 0, noise) }, "move the folder"},
		"cut off": {func(t *testing.T, file string) {
			if err := os.Truncate(file, 20000); err != nil {
				t.Fatal(err)
			}
		}, "move the folder"},
		"damaged, after a crash": {func(t *testing.T, file string) {
			overwrite(t, file, 40960, noise)
			overwrite(t, file+"-wal", 0, []byte("a log that SQLite will ignore"))
		}, "move the folder"},
		"empty": {func(t *testing.T, file string) {
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
		}, "`kedge snapshot restore NAME`"},
		"damaged log": {func(t *testing.T, file string) { overwrite(t, file+"-wal", 0, noise) }, "state.db-wal away to continue"},
		"empty beside a log": {func(t *testing.T, file string) {
			overwrite(t, file+"-wal", 0, noise)
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
		}, "move the folder"},
		"a folder": {func(t *testing.T, file string) {
			os.Remove(file)
			if err := os.Mkdir(file, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is not a file"},
		"newer Kubernetes": {func(t *testing.T, file string) {
			execute(t, file, `UPDATE kedge SET value = 'v1.99.2+kedge.1' WHERE name = 'version'`)
		}, "is too old to read it: install v1.37.2+kedge.dev or later"},
		"newer schema": {func(t *testing.T, file string) {
			execute(t, file, `UPDATE kedge SET value = '2' WHERE name = 'schema'`)
		}, "is too old to read it"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := shortDir(t)
			file := used(t, folder)
			test.harm(t, file)
			before, _ := os.ReadFile(file)
			err := startFails(t, folder)
			t.Log(err)
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want something with %q", err, test.want)
			}
			if after, _ := os.ReadFile(file); !bytes.Equal(before, after) {
				t.Error("the database was changed")
			}
		})
	}
}

// A database that was closed in order is checked after the start. Damage is noticed
// even in a page that nobody reads.
func TestDamageAfterOrderedStop(t *testing.T) {
	folder := shortDir(t)
	file := used(t, folder)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const page, tableLeaf = 4096, 0x0d
	for at := page; ; at += page {
		if at == len(content) {
			t.Fatal("no page of the database has the key")
		}
		if content[at] == tableLeaf && bytes.Contains(content[at:at+page], []byte("/registry/100")) {
			overwrite(t, file, int64(at), bytes.Repeat([]byte("kedge"), page/5))
			break
		}
	}
	d := New(config(folder))
	if err := d.Run(t.Context(), func() {}); !errors.Is(err, errDamaged) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	checkNothingLeft(t, folder)
}

// A start that was killed while it made the database leaves no database.
func TestInterruptedFirstStart(t *testing.T) {
	folder := shortDir(t)
	file := filepath.Join(config(folder).Dir, "state.db")
	if err := os.MkdirAll(config(folder).Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		overwrite(t, file+".new"+part, 0, []byte("half of it"))
	}
	run(t, folder).stop(t)
	left, err := filepath.Glob(file + ".new*")
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left", err, left)
	}
}

func TestAcceptable(t *testing.T) {
	for _, test := range []struct {
		schema, oldest, ours string
		want                 bool
	}{
		{"0", "v1.36.3+kedge.1", "v1.36.3+kedge.1", true},
		{"1", "v1.36.9", "v1.36.3", true},
		{"1", "v1.35.0", "v1.36.3", true},
		{"1", "v1.37.0", "v1.36.3", false},
		{"1", "v2.0.0", "v1.36.3", false},
		{"2", "v1.36.3", "v1.36.3", false},
		{"1", "", "v1.36.3", false},
		{"x", "v1.36.3", "v1.36.3", false},
	} {
		if err := acceptable("state.db", test.schema, test.oldest, test.oldest, test.ours); (err == nil) != test.want {
			t.Errorf("schema %s, oldest %s, ours %s: %v", test.schema, test.oldest, test.ours, err)
		}
	}
}

// kedge takes over a database that kine made, for example of k3s.
func TestDatabaseOfKine(t *testing.T) {
	folder := shortDir(t)
	file := used(t, folder)
	execute(t, file, `DROP TABLE kedge`)
	r := run(t, folder)
	if kept, err := r.Get(context.Background(), "/registry/7"); err != nil || len(kept.Kvs) != 1 {
		t.Errorf("get the object after the table kedge was dropped: got %v, %v", kept, err)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	if !privately(t) {
		return
	}
	for name, prepare := range map[string]func(folder string){
		"new":  func(folder string) {},
		"used": func(folder string) { used(t, folder) },
	} {
		t.Run(name, func(t *testing.T) {
			folder := tmpfs(t, "size=8m")
			prepare(folder)
			if err := syscall.Mount("", folder, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			err := startFails(t, folder)
			t.Log(err)
			if !strings.Contains(err.Error(), "read-write") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestPermission(t *testing.T) {
	folder := shortDir(t)
	file := used(t, folder)
	if _, err := exec.LookPath("chattr"); err != nil || exec.Command("chattr", "+i", file).Run() != nil {
		t.Skip("cannot make a file immutable here")
	}
	t.Cleanup(func() { exec.Command("chattr", "-i", file).Run() })
	err := startFails(t, folder)
	t.Log(err)
	if !strings.Contains(err.Error(), "let root write") {
		t.Errorf("got %v", err)
	}
}

// fill writes a file that takes the space of folder except the given number of
// bytes.
func fill(t *testing.T, folder string, free int) (file string) {
	t.Helper()
	file = filepath.Join(folder, "filler")
	opened, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	size := 0
	for block := make([]byte, 4096); ; size += len(block) {
		if _, err := opened.Write(block); err != nil {
			break
		}
	}
	if err := opened.Truncate(int64(max(0, size-free))); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDiskFullAtStart(t *testing.T) {
	if !privately(t) {
		return
	}
	for name, prepare := range map[string]func(folder string){
		"new":  func(folder string) {},
		"used": func(folder string) { used(t, folder) },
	} {
		t.Run(name, func(t *testing.T) {
			folder := tmpfs(t, "size=8m")
			prepare(folder)
			filler := fill(t, folder, 0)
			err := startFails(t, folder)
			t.Log(err)
			if !errors.Is(err, errFull) {
				t.Errorf("got %v", err)
			}
			os.Remove(filler)
			run(t, folder)
		})
	}
}

func TestDiskFullWhileRunning(t *testing.T) {
	if !privately(t) {
		return
	}
	folder := tmpfs(t, "size=8m")
	r := run(t, folder)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	old, err := create(r.Client, "/registry/old", "1")
	if err != nil {
		t.Fatal(err)
	}
	// These are enough rows to be compacted.
	revision := old.Header.Revision
	for range 1000 {
		changed, err := update(r.Client, "/registry/old", "2", revision)
		if err != nil {
			t.Fatal(err)
		}
		revision = changed.Header.Revision
	}
	filler := fill(t, folder, 0)
	for i := 0; err == nil; i++ {
		_, err = create(r.Client, fmt.Sprintf("/registry/new/%d", i), strings.Repeat("x", 20000))
	}
	t.Log(err)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "df -h") {
		t.Errorf("a create got %v", err)
	}
	// If the error were a conflict, the API server would repeat the request again
	// and again.
	if changed, err := update(r.Client, "/registry/old", strings.Repeat("x", 20000), revision); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an update got %v %v", changed, err)
	}
	if kept, err := r.Get(ctx, "/registry/old"); err != nil || kept.Kvs[0].ModRevision != revision {
		t.Errorf("a read got %v %v", kept, err)
	}
	if fault := r.Health(ctx).Fault; !strings.Contains(fault, "df -h") {
		t.Errorf("the fault is %q", fault)
	}
	// kine's own compaction would end the process here.
	if _, err := r.Compact(ctx, revision); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		t.Logf("compaction: %v", err)
	}
	os.Remove(filler)
	if changed, err := update(r.Client, "/registry/old", "3", revision); err != nil || !changed.Succeeded {
		t.Errorf("update after there is space again: got %v, %v", changed, err)
	}
	if fault := r.Health(ctx).Fault; fault != "" {
		t.Errorf("got fault %q, want none after there is space again", fault)
	}
	r.stop(t)
	again := run(t, folder)
	if kept, err := again.Get(ctx, "/registry/old"); err != nil || string(kept.Kvs[0].Value) != "3" {
		t.Errorf("after a restart: got %v, %v, want the value 3", kept, err)
	}
}

// A database that turns out to be damaged ends the component. Until then the
// answer is an error, never a part of a list.
func TestDamageWhileRunning(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	// This is more than the connections cache.
	for i := range 400 {
		if _, err := create(r.Client, fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 50000)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(config(folder).Dir, "state.db")
	execute(t, file, "PRAGMA wal_checkpoint(TRUNCATE)")
	overwrite(t, file, 5*4096, bytes.Repeat([]byte("kedge"), 4<<20/5))
	// The polling may notice the damage before the list does.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := r.Get(ctx, "/registry/", clientv3.WithPrefix())
	if status.Code(err) != codes.DataLoss && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a list got %v %v", list, err)
	}
	err = r.fails(t)
	t.Log(err)
	if !errors.Is(err, errDamaged) {
		t.Errorf("got %v", err)
	}
	checkNothingLeft(t, folder)
}

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		err   error
		want  string
		fatal bool
	}{
		{sqlite3.Error{Code: sqlite3.ErrFull}, "df -h /d", false},
		{sqlite3.Error{Code: sqlite3.ErrIoErr, ExtendedCode: sqlite3.ErrIoErrWrite, SystemErrno: syscall.EDQUOT}, "df -h /d", false},
		{sqlite3.Error{Code: sqlite3.ErrIoErr, ExtendedCode: sqlite3.ErrIoErrFsync, SystemErrno: syscall.EIO}, "dmesg", true},
		{sqlite3.Error{Code: sqlite3.ErrCorrupt}, "move the folder /d", true},
		{sqlite3.Error{Code: sqlite3.ErrReadonly}, "read-write", true},
		{sqlite3.Error{Code: sqlite3.ErrIoErr, ExtendedCode: sqlite3.ErrIoErrWrite, SystemErrno: syscall.EROFS}, "mounted read-write", false},
		{sqlite3.Error{Code: sqlite3.ErrCantOpen, SystemErrno: syscall.EACCES}, "let root write", true},
		{sqlite3.Error{Code: sqlite3.ErrCantOpen, SystemErrno: syscall.ENOENT}, "is gone", true},
		{sqlite3.Error{Code: sqlite3.ErrCantOpen, SystemErrno: syscall.EMFILE}, "database /d/state.db", false},
		{sqlite3.Error{Code: sqlite3.ErrBusy}, "database /d/state.db", false},
		{&os.PathError{Op: "open", Path: "/d/state.db", Err: syscall.EROFS}, "read-write", false},
		{errors.New("other"), "other", false},
	} {
		got := explain("/d/state.db", test.err)
		if !strings.Contains(got.Error(), test.want) || !errors.Is(got, test.err) {
			t.Errorf("%v: got %q, want something with %q", test.err, got, test.want)
		}
		f := newFaults("/d/state.db")
		f.note(test.err)
		if (f.err() != nil) != test.fatal {
			t.Errorf("%v: fatal is %v", test.err, f.err())
		}
	}
}

// TestOldestReader has a database that versions of kedge use one after the other.
func TestOldestReader(t *testing.T) {
	folder := shortDir(t)
	file := used(t, folder)
	// Versions up to v1.36 have recorded their own version.
	execute(t, file, `UPDATE kedge SET value = 'v1.36.3+kedge.1' WHERE name = 'version'`)
	for _, step := range []struct {
		version string
		want    bool
	}{
		{"v1.35.9+kedge.1", false},
		{"v1.36.2+kedge.1", true},
		{"v1.37.2+kedge.1", true},
		{"v1.36.3+kedge.1", true},
		{"v1.38.0-rc.0+kedge.dev", true},
		{"v1.36.3+kedge.1", false},
		{"v1.37.2+kedge.1", true},
	} {
		err := withDatabase(t.Context(), file, func(db *sql.DB) error { return record(t.Context(), db, file, step.version) })
		if (err == nil) != step.want || err != nil && !strings.Contains(err.Error(), "is too old to read it") {
			t.Errorf("%s: %v", step.version, err)
		}
	}
}
