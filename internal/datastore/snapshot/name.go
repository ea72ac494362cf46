package snapshot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// OnDemand and Scheduled are the names of snapshots, unless a user gives
	// another one.
	OnDemand  = "on-demand"
	Scheduled = "scheduled"

	suffix          = ".zst"
	temporarySuffix = ".tmp"
)

// fileName returns NAME-NODE-UNIXTIME.zst.
func fileName(name, node string, at time.Time) string {
	return fmt.Sprintf("%s-%s-%d%s", name, node, at.Unix(), suffix)
}

var timeAtEnd = regexp.MustCompile(`^(.+)-(\d{1,12})$`)

// parseName tells what the name of a file says: ok is false if it is not one
// that node has given.
func parseName(file, node string) (name string, at time.Time, ok bool) {
	stem, isSnapshot := strings.CutSuffix(file, suffix)
	parts := timeAtEnd.FindStringSubmatch(stem)
	if !isSnapshot || parts == nil {
		return "", time.Time{}, false
	}
	seconds, err := strconv.ParseInt(parts[2], 10, 64)
	name, ok = strings.CutSuffix(parts[1], "-"+node)
	if err != nil || !ok || checkName(name) != nil {
		return "", time.Time{}, false
	}
	return name, time.Unix(seconds, 0).UTC(), true
}

// maxName is how long a name may be: with node and time it is an object's.
const maxName = 63

// checkName returns an error if a user cannot give that name to a snapshot.
func checkName(name string) error {
	if len(name) > maxName || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q cannot be the name of a snapshot: lower-case letters, digits, - and . can, up to %d of them", name, maxName)
	}
	return nil
}

// surplus returns those of files that are to go when the newest of each name
// are kept, as many as retention says; only those called name, if that is not
// empty. They are all of one place.
func surplus(files []File, node, name string, retention int) []File {
	byName := map[string][]File{}
	for _, f := range files {
		if base, at, ok := parseName(f.Name, node); ok && (name == "" || base == name) {
			f.Created = at // what S3 says is when it was uploaded
			byName[base] = append(byName[base], f)
		}
	}
	var old []File
	for _, same := range byName {
		slices.SortFunc(same, newestFirst)
		old = append(old, same[min(retention, len(same)):]...)
	}
	slices.SortFunc(old, newestFirst)
	return old
}

func newestFirst(a, b File) int {
	return cmp.Or(b.Created.Compare(a.Created), strings.Compare(a.Name, b.Name), strings.Compare(a.Location, b.Location))
}
