package events

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Seen returns when an Event was last seen. Events of both APIs have a time: the older one counts in lastTimestamp, and the
// newer one in eventTime and series.
func Seen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}
