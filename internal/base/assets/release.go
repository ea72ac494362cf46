package assets

import (
	"embed"
	"os"
	"reflect"
	"unsafe"

	"golang.org/x/sys/unix"
)

// release takes the archive out of this process's memory. Reading it has mapped it from
// the executable: 16 MiB that would count as in use as long as kedge runs. A later read
// maps it again.
func release(files embed.FS) {
	if pages := wholePages(contentOf(files, "embedded/"+ArchiveName)); len(pages) > 0 {
		// Only advice to the kernel: nothing depends on it.
		_ = unix.Madvise(pages, unix.MADV_DONTNEED)
	}
}

// wholePages returns the part of content that fills whole memory pages, so that releasing
// them touches nothing else.
func wholePages(content string) []byte {
	data := unsafe.Slice(unsafe.StringData(content), len(content))
	page := os.Getpagesize()
	before := int(-uintptr(unsafe.Pointer(unsafe.SliceData(data))) & uintptr(page-1))
	data = data[min(before, len(data)):]
	return data[:len(data)/page*page]
}

// contentOf returns the memory of an embedded file, because package embed returns only
// copies. It is empty if that package does not keep files as in Go 1.26.
//
//upstream:relies-on std/embed/embed.go FS file
func contentOf(files embed.FS, name string) string {
	list := reflect.ValueOf(files).FieldByName("files")
	if list.Kind() != reflect.Pointer || list.IsNil() || list.Elem().Kind() != reflect.Slice {
		return ""
	}
	for i := range list.Elem().Len() {
		file := list.Elem().Index(i)
		if file.Kind() != reflect.Struct || file.FieldByName("name").String() != name {
			continue
		}
		if data := file.FieldByName("data"); data.Kind() == reflect.String {
			return data.String()
		}
	}
	return ""
}
