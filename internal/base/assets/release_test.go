package assets

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"unsafe"
)

func TestRelease(t *testing.T) {
	if _, err := Unpack(t.TempDir()); errors.Is(err, ErrNotBuilt) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	pages := wholePages(contentOf(embedded, "embedded/"+ArchiveName))
	if len(pages) == 0 {
		t.Fatal("the archive is not found where package embed has it: contentOf has to follow that package")
	}
	if n := present(t, pages); n != 0 {
		t.Errorf("%d pages of the archive are mapped once it is unpacked", n)
	}
	archive, err := embedded.Open("embedded/" + ArchiveName)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if _, err := io.Copy(io.Discard, archive); err != nil {
		t.Fatal(err)
	}
	if n := present(t, pages); n == 0 {
		t.Error("no page of the archive is mapped where it was read")
	}
}

func TestWholePages(t *testing.T) {
	page := os.Getpagesize()
	text := string(make([]byte, 3*page))
	for _, content := range []string{"", text[:1], text[1:page], text[1 : 2*page], text[:3*page], text[7:]} {
		pages := wholePages(content)
		if len(pages) == 0 {
			continue
		}
		first := uintptr(unsafe.Pointer(&pages[0]))
		begin := uintptr(unsafe.Pointer(unsafe.StringData(content)))
		if first%uintptr(page) != 0 || len(pages)%page != 0 {
			t.Errorf("%d bytes at %#x are not pages", len(pages), first)
		}
		if first < begin || first+uintptr(len(pages)) > begin+uintptr(len(content)) {
			t.Errorf("%d bytes at %#x are not within %d at %#x", len(pages), first, len(content), begin)
		}
	}
}

// present counts the pages that are mapped (pagemap in proc_pid_pagemap(5)).
func present(t *testing.T, pages []byte) int {
	t.Helper()
	file, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	page := os.Getpagesize()
	entries := make([]byte, 8*(len(pages)/page))
	at := int64(uintptr(unsafe.Pointer(&pages[0]))) / int64(page) * 8
	if _, err := file.ReadAt(entries, at); err != nil {
		t.Fatal(err)
	}
	const mapped = 1 << 63
	n := 0
	for ; len(entries) > 0; entries = entries[8:] {
		if binary.NativeEndian.Uint64(entries)&mapped != 0 {
			n++
		}
	}
	return n
}
