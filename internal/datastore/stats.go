package datastore

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Stats is what a datastore counts: for `kedge status` and /metrics.
type Stats struct {
	// Kind is sqlite, etcd, postgresql, mysql, or external-etcd.
	Kind string `json:"kind"`
	// Place is where it is: a folder, or a host of the user's. There is no
	// password in it.
	Place string `json:"place"`
	// Size is that of the database, and Used the part of it that is not free to
	// be used again; 0 where they are not known.
	Size int64 `json:"sizeBytes,omitempty"`
	Used int64 `json:"usedBytes,omitempty"`
	// Disk is what it is on, nil if that is another host's.
	Disk *Disk `json:"disk,omitempty"`
	// Commits are those since the start, Recent those of the last minutes. With
	// SQLite and etcd a commit is a sync of the disk. Nil where kedge does not
	// see them.
	Commits *Histogram `json:"-"`
	Recent  *Latency   `json:"recentCommits,omitempty"`
	Slow    *Slow      `json:"slow,omitempty"`
}

// Disk is a file system, in bytes.
type Disk struct {
	Size int64 `json:"sizeBytes"`
	Free int64 `json:"freeBytes"`
}

// DiskOf returns the one that a folder is on, nil if it cannot be asked.
func DiskOf(folder string) *Disk {
	var found unix.Statfs_t
	if unix.Statfs(folder, &found) != nil {
		return nil
	}
	return &Disk{Size: int64(found.Blocks) * int64(found.Bsize), Free: int64(found.Bavail) * int64(found.Bsize)}
}

// Latency is how long something took, in nanoseconds.
type Latency struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
}

// Slow is what took longer than it should.
type Slow struct {
	// Over is from when on an operation counts, in nanoseconds.
	Over  time.Duration `json:"over"`
	Count uint64        `json:"count"`
	// Last is the last one, such as "update /registry/leases/…"; Took how long it
	// took, in nanoseconds, and At when it ended.
	Last string        `json:"last,omitempty"`
	Took time.Duration `json:"took,omitempty"`
	At   time.Time     `json:"at,omitzero"`
}

// Health is what a person wants to know besides: it may take asking others.
type Health struct {
	// Fault is why the datastore does not work, or what it waits for, and what to
	// do; empty if it works.
	Fault string `json:"fault,omitempty"`
	// Etcd is nil for those that are not etcd, Connections for those that are not
	// reached by any.
	Etcd        *Etcd        `json:"etcd,omitempty"`
	Connections *Connections `json:"connections,omitempty"`
}

// Etcd is a cluster of etcd, as a member sees it.
type Etcd struct {
	Term uint64 `json:"term"`
	// Committed is the index up to which the cluster has agreed, as far as the
	// member knows; Applied how far the member is.
	Committed uint64 `json:"committedIndex"`
	Applied   uint64 `json:"appliedIndex"`
	// Quorum is how many of the voters must agree, 0 if not all are known.
	Quorum  int          `json:"quorum,omitempty"`
	Members []EtcdMember `json:"members"`
}

// EtcdMember is a member of etcd.
type EtcdMember struct {
	// Name is its node's, or its address if that is not known.
	Name    string `json:"name"`
	Leader  bool   `json:"leader,omitempty"`
	Learner bool   `json:"learner,omitempty"`
	Answers bool   `json:"answers"`
}

// Connections are those to a database.
type Connections struct {
	Open  int `json:"open"`
	InUse int `json:"inUse"`
	Max   int `json:"max"`
	// Answer is how long the database took to answer, in nanoseconds.
	Answer time.Duration `json:"answer,omitempty"`
}

// histogramBounds is how many bounds a Histogram has: those of etcd's histograms
// of the disk (server/storage/wal/metrics.go).
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/wal/metrics.go walFsyncSec
const histogramBounds = 14

// Bound returns one of them: 1 ms, 2 ms, up to 8.192 s.
func Bound(i int) time.Duration { return time.Millisecond << i }

// Histogram counts durations, each between two bounds; the last count is of those
// above all.
type Histogram struct {
	Counts [histogramBounds + 1]uint64
	Sum    time.Duration
}

// Add counts one.
func (h *Histogram) Add(took time.Duration) {
	i := 0
	for i < histogramBounds && took > Bound(i) {
		i++
	}
	h.Counts[i]++
	h.Sum += took
}

// Sub returns what was counted since before.
func (h Histogram) Sub(before Histogram) Histogram {
	for i := range h.Counts {
		h.Counts[i] -= before.Counts[i]
	}
	h.Sum -= before.Sum
	return h
}

// Latency sums it up. Quantiles are those of Prometheus's histogram_quantile:
// within a bucket all is taken for even, and what is above all bounds for the last.
func (h Histogram) Latency() *Latency {
	l := &Latency{}
	for _, n := range h.Counts {
		l.Count += n
	}
	l.P50, l.P99 = h.quantile(0.5, l.Count), h.quantile(0.99, l.Count)
	return l
}

func (h Histogram) quantile(q float64, count uint64) time.Duration {
	rank := uint64(math.Ceil(q * float64(count)))
	var lower time.Duration
	for i, n := range h.Counts[:histogramBounds] {
		if rank <= n {
			return lower + time.Duration(float64(Bound(i)-lower)*float64(rank)/float64(max(n, 1)))
		}
		rank -= n
		lower = Bound(i)
	}
	return lower
}
