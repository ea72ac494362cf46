package staticpods

import (
	"bytes"
	"context"
	"errors"
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

// TestGuard has files from which the kubelet can run no pod. It opens a FIFO as the kubelet does,
// and must not block forever.
func TestGuard(t *testing.T) {
	testutil.CheckLeaks(t)
	folder, said := t.TempDir(), &buffer{}
	logger := logrus.New()
	logger.SetOutput(said)
	ctx, cancel := context.WithCancel(t.Context())
	warned := make(chan string, 10)
	guard := &Guard{
		Folder: folder, Warn: func(message string) { warned <- message }, Log: logrus.NewEntry(logger),
		Check: func(content []byte) error {
			if bytes.HasPrefix(content, []byte("kind: Pod")) {
				return nil
			}
			return errors.New("it has no pod")
		},
	}
	var guarding sync.WaitGroup
	guarding.Go(func() { guard.Run(ctx) })
	defer guarding.Wait()
	defer cancel()

	// put renames a file into the folder: nobody sees a part of it.
	beside := filepath.Join(t.TempDir(), "new")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(beside, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(beside, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(words ...string) {
		t.Helper()
		message := <-warned
		for _, word := range words {
			if !strings.Contains(message, word) {
				t.Errorf("got warning %q, want %q in it", message, word)
			}
		}
	}
	put("pod.yaml", "kind: Pod\n")
	put(".hidden", "\n")
	fifo := filepath.Join(folder, "fifo.yaml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(fifo); err != nil || len(text) > 0 {
		t.Errorf("read %q, %v", text, err)
	}
	want("fifo.yaml: this is a FIFO")
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	put("text.yaml", "hello\n")
	want(filepath.Join(folder, "text.yaml"), "it has no pod. Correct the file")
	put("text.yaml", "kind: Pod\n")
	// The file comes after text.yaml in the folder, so that its warning says that text.yaml was read.
	if err := os.Symlink("nowhere", filepath.Join(folder, "x-link.yaml")); err != nil {
		t.Fatal(err)
	}
	want("x-link.yaml: this is a link to a file that does not exist")
	put("text.yaml", "hello\n")
	want("text.yaml", "it has no pod")
	put("large.yaml", "kind: Pod"+strings.Repeat("\n", maxSize))
	want("large.yaml: the kubelet reads at most 10 MiB")
	if lines := strings.Count(said.String(), "\n"); lines != 5 || strings.Contains(said.String(), "pod.yaml") || strings.Contains(said.String(), "hidden") {
		t.Errorf("got log\n%s\nwant a line for each warning", said)
	}
}
