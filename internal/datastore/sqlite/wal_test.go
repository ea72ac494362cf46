package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// frames are the offsets of the frames of a log, each in a transaction.
type frames [][]int

// transactionsOf reads a log that has one transaction after the other.
func transactionsOf(log []byte) (all frames) {
	const size = walFrameHeader + 4096
	var frames []int
	for at := walHeader; at+size <= len(log); at += size {
		frames = append(frames, at)
		if binary.BigEndian.Uint32(log[at+4:]) != 0 {
			all, frames = append(all, frames), nil
		}
	}
	return all
}

// TestWAL damages SQLite's log after a crash. Changes that were safely stored must
// not be lost silently, and what a power cut can spoil does not count as damage.
func TestWAL(t *testing.T) {
	folder := t.TempDir()
	s := start(t, folder)
	for i := range 5 {
		if _, err := s.Create(t.Context(), fmt.Sprint("/registry/", i), []byte(strings.Repeat("x", 9000)), 0); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(folder, "state.db")
	log, err := os.ReadFile(file + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	all := transactionsOf(log)
	last := len(all) - 1
	if last < 5 || len(all[last]) < 2 || len(all[1]) < 2 {
		t.Fatalf("the log has the transactions %v", all)
	}
	old := strings.Repeat("y", walFrameHeader+4096)
	for name, test := range map[string]struct {
		harm func(log []byte) []byte
		lost bool
	}{
		"whole":                {func(log []byte) []byte { return log }, false},
		"empty":                {func([]byte) []byte { return nil }, false},
		"a part of the header": {func(log []byte) []byte { return log[:20] }, false},
		"only the header":      {func(log []byte) []byte { return log[:walHeader] }, false},
		"the header":           {func(log []byte) []byte { log[3] ^= 1; return log }, true},
		"the header's sum":     {func(log []byte) []byte { log[30] ^= 1; return log }, true},
		"no log":               {func(log []byte) []byte { return []byte(strings.Repeat("kedge", len(log)/5)) }, true},
		"the first page":       {func(log []byte) []byte { log[all[0][0]+500] ^= 1; return log }, true},
		"the salt of a frame":  {func(log []byte) []byte { log[all[1][0]+9] ^= 1; return log }, true},
		"the number of a page": {func(log []byte) []byte { log[all[1][1]] ^= 1; return log }, true},
		"the last but one":     {func(log []byte) []byte { log[all[last-1][0]+500] ^= 1; return log }, true},
		// This is a power cut in the middle of the last transaction.
		"the last one":     {func(log []byte) []byte { log[all[last][0]+500] ^= 1; return log }, false},
		"cut off":          {func(log []byte) []byte { return log[:all[last][1]+100] }, false},
		"in another order": {func(log []byte) []byte { copy(log[all[last][0]:], old); return log }, false},
		// These frames are from before the log was restarted.
		"with older frames": {func(log []byte) []byte { return append(log, strings.Repeat(old, 5)...) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "state.db")
			if err := os.WriteFile(file+"-wal", test.harm([]byte(string(log))), 0o600); err != nil {
				t.Fatal(err)
			}
			err := checkWAL(file)
			if lost := errors.Is(err, errDamaged); lost != test.lost || !lost && err != nil {
				t.Errorf("got %v, want lost: %v", err, test.lost)
			}
		})
	}
}
