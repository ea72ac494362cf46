package reserve

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// zeros never ends.
type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) { return len(buffer), nil }

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// TestReserve fills a disk of 256 MiB, twice, and frees it.
func TestReserve(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	disk := t.TempDir()
	image, memory := filepath.Join(t.TempDir(), "image"), t.TempDir()
	testutil.Command(t, "truncate -s 256M "+image)
	testutil.Command(t, "mkfs.ext4 -q "+image)
	testutil.Command(t, "mount -o loop "+image+" "+disk)
	testutil.Command(t, "mount -t tmpfs tmpfs "+memory)
	defer testutil.Command(t, "umount "+memory)
	defer testutil.Command(t, "umount "+disk)
	logger, logged := logrustest.NewNullLogger()
	folder := filepath.Join(disk, "reserve")
	folders := []string{disk, filepath.Join(disk, "missing"), t.TempDir(), filepath.Join(disk, "kubelet"), memory}
	testutil.Command(t, "mkdir "+folders[3])
	look := func(want int) {
		t.Helper()
		if err := lookAtAll(folders, logrus.NewEntry(logger)); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != want {
			t.Errorf("the reserve has %d files, want %d", len(files), want)
		}
	}
	eaten := filepath.Join(disk, "eaten")
	// eat writes until nothing can be written any more.
	eat := func() {
		t.Helper()
		file, err := os.OpenFile(eaten, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := io.Copy(file, zeros{}); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	look(pieces)
	look(pieces)
	if err := os.Truncate(filepath.Join(folder, "3"), 1); err != nil {
		t.Fatal(err)
	}
	look(pieces) // a crash has left a part
	if info, err := os.Stat(filepath.Join(folder, "3")); err != nil || info.Size() != pieceSize {
		t.Errorf("the damaged file is %v, %v", info, err)
	}

	for left := pieces - 1; left >= 0; left-- {
		eat()
		look(left)
	}
	look(0)
	if len(logged.AllEntries()) != pieces || logged.LastEntry().Message != "The disk of "+folder+" is full. kedge frees 8 MiB of its reserve, so that pods can be evicted. 0 MiB of the reserve are left" {
		t.Errorf("the log has %d lines, the last is %v", len(logged.AllEntries()), logged.LastEntry())
	}
	if err := os.Truncate(eaten, 180<<20); err != nil {
		t.Fatal(err)
	}
	look(0) // about 50 MiB are free: that is not plenty
	if err := os.Remove(eaten); err != nil {
		t.Fatal(err)
	}
	look(pieces)
	if files, err := os.ReadDir(folders[2]); err != nil || len(files) != 1 {
		t.Errorf("the other disk has %v, %v", files, err)
	}
	for _, folder := range folders[3:] {
		if files, err := os.ReadDir(folder); err != nil || len(files) != 0 {
			t.Errorf("a second folder of the disk, or memory, has %v, %v", files, err)
		}
	}
}
