package recorder

import (
	"math"
	"time"
)

// Rate turns a counter into how fast it grows.
type Rate struct{ before float64 }

// NewRate returns a Rate that knows nothing yet.
func NewRate() *Rate { return &Rate{math.NaN()} }

// Of returns by how much a second the counter has grown since the last call. It is NaN at the first call, and if the
// counter has begun again.
func (r *Rate) Of(count float64, elapsed time.Duration) float64 {
	grown := count - r.before
	r.before = count
	if elapsed <= 0 || grown < 0 {
		return math.NaN()
	}
	return grown / elapsed.Seconds()
}

// Mean turns a counter and the sum of what it counts into the mean of what came since the last call.
type Mean struct{ count, sum float64 }

// Of returns the mean, or NaN if nothing came.
func (m *Mean) Of(count, sum float64) float64 {
	more, added := count-m.count, sum-m.sum
	m.count, m.sum = count, sum
	if more <= 0 || added < 0 {
		return math.NaN()
	}
	return added / more
}
