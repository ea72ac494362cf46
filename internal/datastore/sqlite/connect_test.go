package sqlite

import (
	"debug/elf"
	"os"
	"slices"
	"testing"
)

// SQLite must be compiled for fdatasync. Nothing else would tell: with fsync a commit only takes longer,
// and writes more to the disk.
func TestFdatasync(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	imported, err := file.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(imported, func(s elf.ImportedSymbol) bool { return s.Name == "fdatasync" }) {
		t.Error("SQLite was compiled without fdatasync: set CGO_CFLAGS as CONTRIBUTING.md says, or use the Makefile")
	}
}
