// Package measure observes how well a datastore performs. A Meter notes how long
// operations take, and Register adds the counters of a datastore to the metrics of
// the server. The datastores and the server package call it.
package measure

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/datastore"
)

const (
	// slow is the limit above which an operation counts as slow.
	slow = time.Second
	// repeatLog is the least time between two log lines about slow operations.
	repeatLog = time.Minute
	// window is the period that counts as recent, and interval the precision of
	// it.
	window   = 5 * time.Minute
	interval = time.Minute
)

// Meter notes what a datastore does. It runs no goroutine and no timer.
type Meter struct {
	log *logrus.Entry
	// hint tells the user what to look at when operations are slow.
	hint string
	now  func() time.Time

	mu      sync.Mutex
	commits datastore.Histogram
	// marks are earlier states of commits, in order. The first is the newest one
	// that is at least as old as the window, or the very first.
	marks []mark
	slow  datastore.Slow
	// said is when slow operations were last logged, and saidCount how many there
	// were by then.
	said      time.Time
	saidCount uint64
}

type mark struct {
	at      time.Time
	commits datastore.Histogram
}

// NewMeter returns a meter that logs slow operations. The hint tells the user
// what to look at; it is a whole sentence.
func NewMeter(log *logrus.Entry, hint string) *Meter {
	return &Meter{log: log, hint: hint, now: time.Now, slow: datastore.Slow{Over: slow}}
}

// Committed notes how long a commit took.
func (m *Meter) Committed(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.markLocked()
	m.commits.Add(took)
}

// Commits replaces the commits noted so far by all, which counts the commits
// since the process began. It is for datastores that count by themselves, which
// call it now and then.
func (m *Meter) Commits(all datastore.Histogram) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.markLocked()
	m.commits = all
}

// markLocked remembers the commits up to now.
func (m *Meter) markLocked() {
	now := m.now()
	if n := len(m.marks); n == 0 || now.Sub(m.marks[n-1].at) >= interval {
		m.marks = append(m.marks, mark{now, m.commits})
	}
	for len(m.marks) > 1 && now.Sub(m.marks[1].at) >= window {
		m.marks = m.marks[1:]
	}
}

// Done notes that an operation on a key, such as list, has ended. The operation
// began at the given time. If it was slow, Done logs that, at most once a minute.
func (m *Meter) Done(operation, key string, began time.Time) {
	took := m.now().Sub(began)
	if took < slow {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.slow.Count++
	m.slow.Last, m.slow.Took, m.slow.At = operation+" "+key, took, now
	if !m.said.IsZero() && now.Sub(m.said) < repeatLog {
		return
	}
	commits := m.recentLocked()
	m.log.Warnf("The datastore is slow: %s took %s; %d operations took more than %s since the last such message. "+
		"Of the %d commits in the last minutes, half took less than %s and one in a hundred took more than %s. %s",
		m.slow.Last, took.Round(time.Millisecond), m.slow.Count-m.saidCount, slow,
		commits.Count, commits.P50.Round(100*time.Microsecond), commits.P99.Round(100*time.Microsecond), m.hint)
	m.said, m.saidCount = now, m.slow.Count
}

// recentLocked summarizes the commits of the last minutes.
func (m *Meter) recentLocked() *datastore.Latency {
	m.markLocked()
	return m.commits.Sub(m.marks[0].commits).Latency()
}

// Add adds to stats what the meter noted.
func (m *Meter) Add(stats *datastore.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	commits, slow := m.commits, m.slow
	stats.Commits, stats.Recent, stats.Slow = &commits, m.recentLocked(), &slow
}
