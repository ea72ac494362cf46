package component

// AtOnce marks an error after which the other components cannot stop in order, because they
// need this one to do so. A datastore that cannot be trusted any more has such an error. A Group
// does not wait for its components then, and the caller must end the process.
func AtOnce(err error) error { return atOnce{err} }

type atOnce struct{ error }

// Unwrap lets errors.Is find the cause.
func (a atOnce) Unwrap() error { return a.error }
