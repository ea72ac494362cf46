package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
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

// measure unpacks an archive and those in it, and keeps nothing, until nothing is left.
func measure(archive io.Reader, left *int64, depth int) error {
	unpacked, err := gzip.NewReader(archive)
	if err != nil {
		return nil
	}
	if depth == 0 {
		return errTooLarge
	}
	entries := tar.NewReader(&counted{unpacked, left})
	for {
		entry, err := entries.Next()
		if err == nil && strings.HasSuffix(entry.Name, ".tgz") {
			err = measure(entries, left, depth-1)
		}
		switch {
		case errors.Is(err, errTooLarge):
			return err
		case err != nil:
			return nil
		}
	}
}

// counted takes what is read from what is left.
type counted struct {
	io.Reader
	left *int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if *c.left -= int64(n); *c.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
