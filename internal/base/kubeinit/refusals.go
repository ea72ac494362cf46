package kubeinit

import (
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

// refused notes when an error of a datastore that refuses to write was last shown.
type refused struct {
	mu   sync.Mutex
	said time.Time
}

// level returns the level of an error that is no refusal, or of a refusal.
func (r *refused) level(text string) logrus.Level {
	is := false
	for _, refusal := range refusals {
		is = is || strings.Contains(text, refusal)
	}
	if !is {
		return logrus.ErrorLevel
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.said) >= reminder {
		r.said = now
		return logrus.WarnLevel
	}
	return logrus.DebugLevel
}
