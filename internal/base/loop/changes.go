package loop

// Changes receives when something has changed, and can be the Wake of a Loop. Several changes
// count as one, because its receiver then looks at everything.
type Changes chan struct{}

// NewChanges makes Changes.
func NewChanges() Changes { return make(Changes, 1) }

// Notify makes the receiver look at everything. It does not wait for the receiver.
func (c Changes) Notify() {
	select {
	case c <- struct{}{}:
	default:
	}
}
