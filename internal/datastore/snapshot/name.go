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
	// OnDemand and Scheduled are the names of snapshots if the user gives no
	// other name.
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

// parseName splits the name of a snapshot's file. ok is false if node has not
// given that name.
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

// maxName limits the length of a name: together with node and time it names an
// object.
const maxName = 63

// checkName returns an error if a user cannot give that name to a snapshot.
func checkName(name string) error {
	if len(name) > maxName || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("invalid snapshot name %q: use at most %d lower-case letters, digits, \"-\" and \".\"", name, maxName)
	}
	return nil
}

// surplus returns those of files that are to be deleted, so that of each name as
// many as retention says remain, the newest ones. If name is not empty, it
// considers only snapshots of that name. All files are in one place.
func surplus(files []File, node, name string, retention int) []File {
	byName := map[string][]File{}
	for _, f := range files {
		if base, at, ok := parseName(f.Name, node); ok && (name == "" || base == name) {
			f.Created = at // S3 tells only the time of the upload
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
