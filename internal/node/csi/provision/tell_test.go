package provision

import (
	"errors"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/client-go/tools/cache"
)

// TestTell wants the log to have each fault of a volume once, with the volume's name once.
func TestTell(t *testing.T) {
	logger, hook := logtest.NewNullLogger()
	c := &claims{log: logrus.NewEntry(logger)}
	volume, claim := cache.ObjectName{Name: "pvc-1"}, cache.ObjectName{Namespace: "shop", Name: "data"}
	busy := errors.New("pvc-1: another operation is under way")
	for range 33 {
		c.tell(volume, busy)
	}
	c.tell(claim, errors.New("no space is left"))
	c.tell(volume, errors.New("the disk is gone"))
	c.tell(volume, busy)
	var lines []string
	for _, entry := range hook.AllEntries() {
		lines = append(lines, entry.Message)
	}
	want := []string{
		"pvc-1: another operation is under way", "shop/data: no space is left",
		"pvc-1: the disk is gone", "pvc-1: another operation is under way",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
}
