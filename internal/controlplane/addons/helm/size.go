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
	// maxChart bounds a chart that is unpacked, with the charts in it, in bytes. Large
	// ones have 6 MB. Helm has a bound of 100 MiB for each archive of them alone.
	maxChart = 32 << 20
	// maxNested is how many archives deep a chart may be, which can have itself in it.
	maxNested = 8
	// tarBlock is what a file without content takes, in bytes.
	tarBlock = 512
)

// errTooLarge says that a chart takes more memory than any should.
var errTooLarge = fmt.Errorf("the chart has more than %d MiB when it is unpacked with the charts in it, or archives more than %d deep: "+
	"leave out of it what is no manifest", maxChart>>20, maxNested)

// checkSize tells whether a chart's archive has a sensible size when it is unpacked.
// The loader itself says what else is wrong with it.
func checkSize(archive []byte) error {
	left := int64(maxChart)
	return measure(bytes.NewReader(archive), &left, maxNested)
}

// measure takes the sizes of an archive's files, and of those in its archives, from what
// is left. It keeps nothing.
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
		// Files may have holes: what is read of the archive can be much less.
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
