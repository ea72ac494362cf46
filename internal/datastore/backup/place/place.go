// Package place keeps the files of a backup where they outlive the server: in a bucket of S3, or in a folder such as one on
// a USB disk. A file appears complete or not at all. Nobody changes it later. If several servers create a file of
// one name, only one of them succeeds. Package chain builds on that.
package place

import (
	"context"
	"errors"

	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/datastore/bucket"
)

// MaxFile is the size of the largest file, in bytes.
const MaxFile = 16 << 20

// The errors that callers tell apart.
var (
	// ErrExists says that there is a file of that name.
	ErrExists = errors.New("it exists already")
	// ErrNotFound says that there is no file of that name.
	ErrNotFound = errors.New("it does not exist")
	// ErrAbsent says that the place is not there, such as a disk that is not plugged in.
	ErrAbsent = errors.New("the place of the backup is not there")
)

// markName is a file that each place has. A folder without it may be the place where a disk is mounted at other times.
const markName = "kedge-backup"

// mark is what the file says, to a person.
const mark = "This folder has a backup of a cluster. `kedge backup` and `kedge restore` read it.\n"

// Place keeps files. Names have slashes, and begin with none.
type Place interface {
	// Prepare makes the place. It may be called again. It fails if the place does not do what this package promises.
	Prepare(ctx context.Context) error
	// Create makes a file, and returns when the file is there for good. It fails with ErrExists if there is one of that name. After another
	// error, nobody knows whether the file is there.
	Create(ctx context.Context, name string, content []byte) error
	// Read returns a file. It fails with ErrNotFound.
	Read(ctx context.Context, name string) ([]byte, error)
	// Names returns the names of the files and folders in a folder, sorted. Those of folders end with a slash. A folder that
	// does not exist has none.
	Names(ctx context.Context, folder string) ([]string, error)
	// Remove removes a file. It succeeds if there is none.
	Remove(ctx context.Context, name string) error
	// String returns the URL, without passwords.
	String() string
}

// Open returns a place. The settings of S3 have the keys. Their endpoint, bucket and folder are replaced by those of the location. The client of the
// cluster is for s3-config-secret. It is nil if the cluster does not run.
func Open(ctx context.Context, location string, settings config.S3, cluster kubernetes.Interface) (Place, error) {
	p, err := config.ParsePlace(location)
	if err != nil {
		return nil, err
	}
	if p.Path != "" {
		return folder(p.Path), nil
	}
	b, err := bucket.Open(ctx, settings, cluster, func(s *config.S3) { s.Endpoint, s.Bucket, s.Folder = p.Endpoint, p.Bucket, p.Folder })
	if err != nil {
		return nil, err
	}
	return remote{b}, nil
}
