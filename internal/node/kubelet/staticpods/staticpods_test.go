package staticpods

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// buffer can be written and read concurrently.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// TestGuard opens a FIFO as the kubelet does. It must not block forever.
func TestGuard(t *testing.T) {
	testutil.CheckLeaks(t)
	folder, said := t.TempDir(), &buffer{}
	logger := logrus.New()
	logger.SetOutput(said)
	ctx, cancel := context.WithCancel(t.Context())
	warned := make(chan string, 1)
	var guarding sync.WaitGroup
	guarding.Go(func() { Guard(ctx, folder, func(message string) { warned <- message }, logrus.NewEntry(logger)) })
	defer guarding.Wait()
	defer cancel()

	for _, name := range []string{"pod.yaml", ".hidden"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("kind: Pod\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(folder, "fifo.yaml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(fifo); err != nil || len(text) > 0 {
		t.Errorf("read %q, %v", text, err)
	}
	if message := <-warned; !strings.Contains(message, "fifo.yaml: this is a FIFO") {
		t.Errorf("got warning %q, want that fifo.yaml is a FIFO", message)
	}
	if text := said.String(); !strings.Contains(text, "fifo.yaml: this is a FIFO") || strings.Contains(text, "pod.yaml") || strings.Contains(text, "hidden") {
		t.Errorf("got log\n%s\nwant one line about fifo.yaml", text)
	}
}
