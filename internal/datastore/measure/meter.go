// Package measure is how a datastore knows how it fares: a Meter notes how long
// things take, and Register shows what every datastore tells in the API server's
// /metrics. The datastores and the server package call it.
package measure

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/datastore"
)

const (
	// slow is from when on an operation is.
	slow = time.Second
	// repeatLog is after how long is logged again that operations are slow.
	repeatLog = time.Minute
	// window is what counts as recent, and interval how exactly.
	window   = 5 * time.Minute
	interval = time.Minute
)

// Meter notes what a datastore does. It wakes nobody.
type Meter struct {
	log *logrus.Entry
	// hint says what a user can look at when operations are slow.
	hint string
	now  func() time.Time

	mu      sync.Mutex
	commits datastore.Histogram
	// marks are earlier states of commits, in order; the first is the last one
	// that is as old as the window, or the first of all.
	marks []mark
	slow  datastore.Slow
	// said is when slow operations were last logged, and saidCount how many
	// there had been by then.
	said      time.Time
	saidCount uint64
}

type mark struct {
	at      time.Time
	commits datastore.Histogram
}

// NewMeter returns a meter that logs slow operations, with a hint on what to look
// at, a whole sentence.
func NewMeter(log *logrus.Entry, hint string) *Meter {
	return &Meter{log: log, hint: hint, now: time.Now, slow: datastore.Slow{Over: slow}}
}

// Committed notes how long a commit took.
func (m *Meter) Committed(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark()
	m.commits.Add(took)
}

// Commits notes what commits there have been since the process began, by who
// counts them, every now and then.
func (m *Meter) Commits(all datastore.Histogram) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark()
	m.commits = all
}

// mark remembers what commits there were up to now. The lock is held.
func (m *Meter) mark() {
	now := m.now()
	if n := len(m.marks); n == 0 || now.Sub(m.marks[n-1].at) >= interval {
		m.marks = append(m.marks, mark{now, m.commits})
	}
	for len(m.marks) > 1 && now.Sub(m.marks[1].at) >= window {
		m.marks = m.marks[1:]
	}
}

// Done notes that an operation, such as list, of a key has ended that began at a
// time, and logs, once a minute at most, that there are slow ones.
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
	commits := m.recent()
	m.log.Warnf("The datastore is slow: %s took %s; %d operations took more than %s since this was last said. "+
		"Of %d commits in the last minutes half took less than %s, and one in a hundred more than %s. %s",
		m.slow.Last, took.Round(time.Millisecond), m.slow.Count-m.saidCount, slow,
		commits.Count, commits.P50.Round(100*time.Microsecond), commits.P99.Round(100*time.Microsecond), m.hint)
	m.said, m.saidCount = now, m.slow.Count
}

// recent is what commits there were in the last minutes. The lock is held.
func (m *Meter) recent() *datastore.Latency {
	m.mark()
	return m.commits.Sub(m.marks[0].commits).Latency()
}

// Add adds what was noted to stats.
func (m *Meter) Add(stats *datastore.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	commits, slow := m.commits, m.slow
	stats.Commits, stats.Recent, stats.Slow = &commits, m.recent(), &slow
}
