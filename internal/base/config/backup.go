package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Backup is where every change is written, so that nothing is lost with the server. It has the S3 settings of snapshots, except endpoint, bucket
// and folder.
type Backup struct {
	// Location is empty for no backup. Package place reads it.
	Location string `key:"backup" role:"server" usage:"write every change of the cluster to s3://ENDPOINT/BUCKET/FOLDER, with s3-access-key and s3-secret-key, or to file:///FOLDER"`
	// Interval is a duration.
	Interval string `key:"backup-interval" role:"server" usage:"how long after a change it is in the backup at the latest, 1s or more"`
	// Keep is ALL/DAILY: see KeepTimes.
	Keep string `key:"backup-keep" role:"server" usage:"how long the backup has every state, and after that one state of each day"`
	// Verify is never, daily or weekly: see VerifyEvery.
	Verify string `key:"backup-verify" role:"server" usage:"how often to read the backup back and compare it with the cluster: daily, weekly or never"`
	// Volumes is empty if no volumes are backed up by a schedule.
	Volumes string `key:"backup-volumes" role:"server" usage:"when to back up the contents of volumes, in cron's syntax, such as 0 3 * * *"`
}

// KeepTimes returns Keep parsed: how long every state is kept, and how long one state of each day is.
func (b *Backup) KeepTimes() (all, daily time.Duration, err error) {
	first, second, ok := strings.Cut(b.Keep, "/")
	if ok {
		all, err = inDays(first)
		if err == nil {
			daily, err = inDays(second)
		}
		if err == nil && daily >= all && all > 0 {
			return all, daily, nil
		}
	}
	return 0, 0, fmt.Errorf("%q does not say how long: write the days with every state and the days with one state each, such as 7d/90d. The second must not be less than the first", b.Keep)
}

// VerifyEvery returns Verify parsed. It is 0 for never.
func (b *Backup) VerifyEvery() (time.Duration, error) {
	const day = 24 * time.Hour
	every, ok := map[string]time.Duration{"never": 0, "daily": day, "weekly": 7 * day}[b.Verify]
	if !ok {
		return 0, fmt.Errorf("unknown interval %q: use daily, weekly or never", b.Verify)
	}
	return every, nil
}

// inDays reads a duration of whole days, such as 7d.
func inDays(text string) (time.Duration, error) {
	days, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(text), "d"), 10, 14)
	return time.Duration(days) * 24 * time.Hour, err
}

// Place is where a backup is: a folder of this host, or a folder in a bucket of S3.
type Place struct {
	// Path is the folder of this host. It is empty for S3.
	Path string
	// Endpoint, Bucket and Folder take the place of those in S3.
	Endpoint, Bucket, Folder string
}

// ParsePlace reads s3://ENDPOINT/BUCKET/FOLDER, or file:///FOLDER.
func ParsePlace(location string) (Place, error) {
	u, err := url.Parse(location)
	if err == nil {
		switch path := strings.Trim(u.Path, "/"); {
		case u.Scheme == "file" && u.Host == "" && path != "":
			return Place{Path: filepath.Clean(u.Path)}, nil
		case u.Scheme == "s3" && u.Host != "" && u.User == nil && path != "":
			bucket, folder, _ := strings.Cut(path, "/")
			return Place{Endpoint: u.Host, Bucket: bucket, Folder: folder}, nil
		}
	}
	return Place{}, fmt.Errorf("%q is not the place of a backup: write s3://ENDPOINT/BUCKET/FOLDER, or file:///FOLDER", location)
}
