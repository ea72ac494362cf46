package kubeinit

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// refusals are what a datastore says while it can write nothing (errFull and errReadOnly in
// internal/datastore/sqlite). Every loop of Kubernetes that writes then logs an error each time,
// onto the disk that is full. The datastore itself says what is wrong, and what to do.
var refusals = []string{"disk is full: nothing can be written to ", "file system is read-only: nothing can be written to "}

// reminder is how often one of these errors is shown as a warning, for nodes without a datastore.
const reminder = time.Minute

// maxOthers is how many messages are remembered. Some have names and times in them, and a disk may be
// full for days.
const maxOthers = 1000

// refused notes what a datastore that refuses to write has caused.
type refused struct {
	mu sync.Mutex
	// last is when the datastore last refused, and said is when that was last shown.
	last, said time.Time
	// others are the other messages since the datastore began to refuse. A loop that tries again
	// may only say that its time is up.
	others map[string]bool
}

// level returns the level of an error. It is lower if the datastore refuses to write, and somebody
// has been told so already.
func (r *refused) level(message, detail string) logrus.Level {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if isRefusal(message) || isRefusal(detail) {
		r.last = now
		if now.Sub(r.said) < reminder {
			return logrus.DebugLevel
		}
		r.said = now
		return logrus.WarnLevel
	}
	if now.Sub(r.last) >= reminder {
		r.others = nil
		return logrus.ErrorLevel
	}
	if r.others[message] {
		return logrus.DebugLevel
	}
	if r.others == nil || len(r.others) == maxOthers {
		r.others = map[string]bool{}
	}
	r.others[message] = true
	return logrus.ErrorLevel
}

func isRefusal(text string) bool {
	return slices.ContainsFunc(refusals, func(refusal string) bool { return strings.Contains(text, refusal) })
}
