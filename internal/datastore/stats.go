package datastore

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Stats are the counters of a datastore, for `kedge status` and /metrics.
type Stats struct {
	// Kind is sqlite, etcd, postgresql, mysql, or external-etcd.
	Kind string `json:"kind"`
	// Place is the folder or the user's host that has the data. It contains no
	// password.
	Place string `json:"place"`
	// Size is the size of the database. Used is the part of it that is in use;
	// SQLite and etcd reuse the rest. Both are 0 if they are not known.
	Size int64 `json:"sizeBytes,omitempty"`
	Used int64 `json:"usedBytes,omitempty"`
	// Disk is the file system of the data. It is nil if the data are on another
	// host.
	Disk *Disk `json:"disk,omitempty"`
	// Commits counts the commits since the start, Recent those of the last
	// minutes. With SQLite and etcd a commit is a sync of the disk. Both are nil
	// if kedge does not see the commits.
	Commits *Histogram `json:"-"`
	Recent  *Latency   `json:"recentCommits,omitempty"`
	Slow    *Slow      `json:"slow,omitempty"`
}

// Disk is a file system, in bytes.
type Disk struct {
	Size int64 `json:"sizeBytes"`
	Free int64 `json:"freeBytes"`
}

// DiskOf returns the file system of a folder, or nil if the system does not tell.
func DiskOf(folder string) *Disk {
	var found unix.Statfs_t
	if unix.Statfs(folder, &found) != nil {
		return nil
	}
	return &Disk{Size: int64(found.Blocks) * int64(found.Bsize), Free: int64(found.Bavail) * int64(found.Bsize)}
}

// Latency summarizes how long something took. P50 and P99 are in nanoseconds.
type Latency struct {
	Count uint64        `json:"count"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
}

// Slow counts the operations that took too long.
type Slow struct {
	// Over is the limit, in nanoseconds: an operation that took longer is
	// counted.
	Over  time.Duration `json:"over"`
	Count uint64        `json:"count"`
	// Last names the most recent slow operation, such as "update
	// /registry/leases/…". Took is its duration in nanoseconds, At the time when
	// it ended.
	Last string        `json:"last,omitempty"`
	Took time.Duration `json:"took,omitempty"`
	At   time.Time     `json:"at,omitzero"`
}

// Health is what a person wants to know beyond Stats. Finding it out may take
// questions to other hosts.
type Health struct {
	// Fault says why the datastore does not work, or what it waits for, and what
	// to do. It is empty if the datastore works.
	Fault string `json:"fault,omitempty"`
	// Etcd is nil for datastores that are not etcd. Connections is nil for those
	// that kedge reaches without connections.
	Etcd        *Etcd        `json:"etcd,omitempty"`
	Connections *Connections `json:"connections,omitempty"`
}

// Etcd is the state of an etcd cluster, as one member sees it.
type Etcd struct {
	Term uint64 `json:"term"`
	// Committed is the highest index that the cluster has agreed on, as far as
	// the member knows. Applied is the highest index that the member has applied.
	Committed uint64 `json:"committedIndex"`
	Applied   uint64 `json:"appliedIndex"`
	// Quorum is how many of the voters must agree. It is 0 if not all voters are
	// known.
	Quorum  int          `json:"quorum,omitempty"`
	Members []EtcdMember `json:"members"`
}

// EtcdMember is a member of etcd.
type EtcdMember struct {
	// Name is the name of the member's node, or the member's address if the node
	// is not known.
	Name    string `json:"name"`
	Leader  bool   `json:"leader,omitempty"`
	Learner bool   `json:"learner,omitempty"`
	Answers bool   `json:"answers"`
}

// Connections are the connections to a database.
type Connections struct {
	Open  int `json:"open"`
	InUse int `json:"inUse"`
	Max   int `json:"max"`
	// Answer is how long the database took to answer a question, in nanoseconds.
	Answer time.Duration `json:"answer,omitempty"`
}

// histogramBounds is the number of bounds of a Histogram. The bounds are those of
// etcd's histograms of the disk (server/storage/wal/metrics.go).
//
//upstream:relies-on go.etcd.io/etcd/server/v3/storage/wal/metrics.go walFsyncSec
const histogramBounds = 14

// Bound returns bound i of a Histogram: 1 ms, 2 ms, up to 8.192 s.
func Bound(i int) time.Duration { return time.Millisecond << i }

// Histogram counts durations between bounds. Counts[i] counts those up to
// Bound(i); the last count is of those above all bounds.
type Histogram struct {
	Counts [histogramBounds + 1]uint64
	Sum    time.Duration
}

// Add counts one duration.
func (h *Histogram) Add(took time.Duration) {
	i := 0
	for i < histogramBounds && took > Bound(i) {
		i++
	}
	h.Counts[i]++
	h.Sum += took
}

// Sub returns what h counted since it had the state before.
func (h Histogram) Sub(before Histogram) Histogram {
	for i := range h.Counts {
		h.Counts[i] -= before.Counts[i]
	}
	h.Sum -= before.Sum
	return h
}

// Latency returns the number of durations and their quantiles, as Prometheus's
// histogram_quantile computes them: durations are assumed to be spread evenly
// within a bucket, and those above all bounds count as the last bound.
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
