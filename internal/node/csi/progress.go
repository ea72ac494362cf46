package csi

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
)

// progress counts what was read of an archive.
type progress struct {
	io.Reader
	began, of time.Time
	size      int64
	done      atomic.Int64
	// fault says why nothing comes. It is nil as long as something does.
	fault error
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.done.Add(int64(n))
	return n, err
}

// String says how far it is, to people.
func (p *progress) String() string {
	text := fmt.Sprintf("the data of the volume come from the backup of %s", p.of.UTC().Format("2006-01-02 15:04 MST"))
	if p.fault != nil {
		return fmt.Sprintf("%s, which fails: %v. kedge tries again", text, p.fault)
	}
	return text + howFar(p.done.Load(), p.size, time.Since(p.began))
}

// howFar says how much of a size is done, if anything is, and how long the rest takes.
func howFar(done, size int64, took time.Duration) string {
	if done <= 0 || size <= 0 {
		return ""
	}
	left := time.Duration(float64(took) / float64(done) * float64(max(size-done, 0)))
	return fmt.Sprintf(": %d %% of %s, about %s left", 100*done/size, humanize.IBytes(uint64(size)), left.Round(time.Second))
}
