// Package version tells which build of kedge this is. The values are set by
// the Makefile through ldflags; a plain `go build` gets the defaults.
package version

import (
	"strconv"
	"time"
)

var (
	// Version is the version of Kubernetes with kedge's own as build metadata,
	// for example v1.37.2+kedge.1.
	Version = "v1.37.2+kedge.dev"
	// Commit is the git commit the binary was built from.
	Commit = "unknown"
	// Plain is not empty if the API server does everything as upstream's: see package lean.
	Plain = ""
	// commitUnix is the commit's date in seconds since 1970.
	commitUnix = "0"
)

// CommitDate returns when the commit of this build was made. A clock that is right is
// never earlier. For a plain `go build` it is the zero of Unix time.
func CommitDate() time.Time {
	seconds, err := strconv.ParseInt(commitUnix, 10, 64)
	if err != nil {
		return time.Unix(0, 0)
	}
	return time.Unix(seconds, 0)
}
