package slowfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestCut writes with programs on a host, because the test itself serves the file system and must not
// wait for it.
func TestCut(t *testing.T) {
	harness.Require(t)
	h := harness.NewNetwork(t).NewHost(t, "disk")
	disk := Mount(t, h, "/var/lib/kedge/db", Limits{})
	run := func(script string) string {
		t.Helper()
		output, err := h.Command(t.Context(), harness.Busybox(t), "sh", "-ec", "cd /var/lib/kedge/db; "+script).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(output)
	}
	run("printf synced >a; printf 0123456789 >b; sync a b; printf ' and more' >>a; printf XX | dd of=b bs=1 seek=2 conv=notrunc 2>/dev/null; printf new >c")
	if got, want := run("cat a b c"), "synced and more01XX456789new"; got != want {
		t.Errorf("before the cut the files hold %q, want %q", got, want)
	}
	if err := disk.Cut(); err != nil {
		t.Fatal(err)
	}
	if output, err := h.Command(t.Context(), harness.Busybox(t), "sh", "-c", "echo >>/var/lib/kedge/db/a").CombinedOutput(); err == nil {
		t.Errorf("a write without power succeeded: %s", output)
	}
	disk.PowerOn()
	if got, want := run("cat a b c"), "synced0123456789"; got != want {
		t.Errorf("after the cut the files hold %q, want %q", got, want)
	}
	run(": >b; printf Z >b; sync b; printf long >>a; : >a")
	if err := disk.Cut(); err != nil {
		t.Fatal(err)
	}
	disk.PowerOn()
	if got, want := run("cat a b"), "syncedZ"; got != want {
		t.Errorf("after the second cut the files hold %q, want %q", got, want)
	}
	if stats := disk.Stats(); stats.Syncs != 3 {
		t.Errorf("the disk counted %d syncs, want 3", stats.Syncs)
	}
}

// TestStall makes a program wait for the disk.
func TestStall(t *testing.T) {
	harness.Require(t)
	h := harness.NewNetwork(t).NewHost(t, "disk")
	disk := Mount(t, h, "/var/lib/kedge/db", Limits{})
	t.Cleanup(disk.Resume)
	disk.Stall()
	written := make(chan error, 1)
	cmd := h.Command(t.Context(), harness.Busybox(t), "sh", "-ec", "cd /var/lib/kedge/db; echo >a; sync a")
	go func() { written <- cmd.Run() }()
	select {
	case err := <-written:
		t.Errorf("a write to the stalled disk ended with %v", err)
	case <-time.After(time.Second):
	}
	disk.Resume()
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestFlushOverlap overwrites a page while it is being flushed.
func TestFlushOverlap(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	u, err := newUnsynced(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	write := func(text string) {
		t.Helper()
		if err := u.keep(0, int64(len(text))); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	if got := u.flush(); got != pageSize {
		t.Errorf("the first flush is of %d bytes, want %d", got, pageSize)
	}
	write("second")
	if u.flushed() {
		t.Error("all is durable, though the file changed during the flush")
	}
	if err := u.revert(); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file.Name()); string(got) != "first" {
		t.Errorf("the file holds %q, want what was flushed", got)
	}
}

func TestReserve(t *testing.T) {
	busy := time.Now().Add(time.Hour)
	d := &Disk{limits: Limits{BytesPerSecond: 1000, SyncsPerSecond: 4}, free: busy}
	d.reserve(500)
	if got, want := d.free.Sub(busy), 750*time.Millisecond; got != want {
		t.Errorf("half a second of bytes and a sync take %s, want %s", got, want)
	}
	if got := (&Disk{}).reserve(1 << 30); got != 0 {
		t.Errorf("without limits: got %s for a write, want 0", got)
	}
}
