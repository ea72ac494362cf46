package folderwatch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

func TestStart(t *testing.T) {
	folder := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	logger, said := test.NewNullLogger()
	log := logger.WithField("component", "test")
	changes := Start(ctx, folder, 50*time.Millisecond, log)
	file := filepath.Join(folder, "file")
	for _, change := range []func() error{
		func() error { return os.WriteFile(file, []byte("1"), 0o600) },
		func() error { return os.WriteFile(file, []byte("2"), 0o600) },
		func() error { return os.Rename(file, file+".new") },
		func() error { return os.Remove(file + ".new") },
		func() error { return os.Remove(folder) },
		func() error { return os.Mkdir(folder, 0o700) },
		func() error { return os.WriteFile(file, []byte("3"), 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		<-changes
	}
	stop()
	for range changes { // a last value may have been in the channel
	}
	if len(said.AllEntries()) > 0 {
		t.Errorf("got log line %v, want none", said.LastEntry())
	}
	ctx, stop = context.WithCancel(t.Context())
	changes = Start(ctx, filepath.Join(folder, "nothing"), time.Second, log)
	if entry := said.LastEntry(); entry == nil || !strings.Contains(entry.Message, "kedge does not see changes") {
		t.Errorf("folder that does not exist: got log line %v, want that changes are not seen", entry)
	}
	stop()
	for range changes {
	}
}

// TestStartTree reports changes in folders that were made after the start.
func TestStartTree(t *testing.T) {
	folder := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	logger, said := test.NewNullLogger()
	changes := StartTree(ctx, folder, 50*time.Millisecond, logger.WithField("component", "test"))
	deep := filepath.Join(folder, "deep", "er")
	file := filepath.Join(deep, "file")
	for _, change := range []func() error{
		func() error { return os.MkdirAll(deep, 0o700) },
		func() error { return os.WriteFile(file, nil, 0o600) },
		func() error { return os.Remove(file) },
		func() error { return os.RemoveAll(filepath.Dir(deep)) },
		func() error { return os.MkdirAll(deep, 0o700) },
		func() error { return os.WriteFile(file, nil, 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		<-changes
	}
	stop()
	for range changes {
	}
	if len(said.AllEntries()) > 0 {
		t.Errorf("got log line %v, want none", said.LastEntry())
	}
}
