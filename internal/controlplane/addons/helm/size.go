package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
)

const (
	// maxChart limits the size of an unpacked chart, with the charts in it, in bytes.
	// Large charts have 6 MB. Helm's own limit is 100 MiB for each single archive.
	maxChart = 32 << 20
	// maxNested limits how deep archives may be nested: a chart could contain itself.
	maxNested = 8
	// tarBlock is the size of a file without content in an archive, in bytes.
	tarBlock = 512
)

// errTooLarge says that a chart needs too much memory.
var errTooLarge = fmt.Errorf("the unpacked chart, with the charts in it, is larger than %d MiB, or has archives nested more than %d deep: "+
	"remove files that are not manifests", maxChart>>20, maxNested)

// checkSize returns an error if a chart's archive is too large when it is unpacked.
// The loader itself reports other faults.
func checkSize(archive []byte) error {
	left := int64(maxChart)
	return measure(bytes.NewReader(archive), &left, maxNested)
}

// measure subtracts the sizes of an archive's files, and of those in nested archives,
// from left. It keeps no content.
func measure(archive io.Reader, left *int64, depth int) error {
	unpacked, err := gzip.NewReader(archive)
	if err != nil {
		return nil
	}
	if depth == 0 {
		return errTooLarge
	}
	entries := tar.NewReader(unpacked)
	for {
		entry, err := entries.Next()
		if err != nil {
			return nil
		}
		// Files may have holes, so an archive can be much smaller than its files.
		if *left -= tarBlock + entry.Size; *left < 0 {
			return errTooLarge
		}
		if strings.HasSuffix(entry.Name, ".tgz") {
			if err := measure(entries, left, depth-1); err != nil {
				return err
			}
		}
	}
}
