package snapshot

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/kedge-dev/kedge/internal/datastore/bucket"
)

// requestTimeout limits requests that transfer no snapshot: s3-timeout is for those.
const requestTimeout = time.Minute

// s3 returns the bucket for snapshots.
func (s *Snapshots) s3(ctx context.Context) (*bucket.Bucket, error) {
	return bucket.Open(ctx, s.cfg.Settings.S3Settings, s.client)
}

// kept returns how many scheduled snapshots are kept at a place: bucket.Scheme, or another.
func (s *Snapshots) kept(ctx context.Context, place string) int {
	if place == bucket.Scheme {
		if b, err := s.s3(ctx); err == nil && b.Retention > 0 {
			return b.Retention
		}
	}
	return s.cfg.Settings.Retention
}

// locationS3 returns where a file of that name would be, as far as the settings
// tell.
func (s *Snapshots) locationS3(name string) string {
	return (&bucket.Bucket{S3: s.cfg.Settings.S3Settings}).Location(name)
}

// send sends the snapshot called name to S3. It also sends this node's earlier
// snapshots that could not be sent, as far as prune would keep them. If a transfer
// fails, it returns the name of that snapshot.
func (s *Snapshots) send(ctx context.Context, name string) (unsent string, err error) {
	there, err := s.listS3(ctx)
	if err != nil {
		return name, err
	}
	here, err := s.cfg.listFolder()
	if err != nil {
		return name, err
	}
	done := map[string]bool{}
	for _, f := range append(there, surplus(here, s.cfg.NodeName, "", s.kept(ctx, bucket.Scheme))...) {
		done[f.Name] = true
	}
	slices.SortFunc(here, newestFirst)
	for _, f := range here {
		_, _, own := parseName(f.Name, s.cfg.NodeName)
		if !own || done[f.Name] || f.Error != "" {
			continue
		}
		if err := s.upload(ctx, f.Name); err != nil {
			return f.Name, err
		}
	}
	return "", nil
}

func (s *Snapshots) upload(ctx context.Context, name string) error {
	b, err := s.s3(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.TransferTimeout())
	defer cancel()
	_, err = b.FPutObject(ctx, b.Bucket, b.Key(name), filepath.Join(s.cfg.folder(), name), minio.PutObjectOptions{
		ContentType: "application/zstd", NumThreads: 1,
		UserMetadata: map[string]string{nodeMetadata: s.cfg.NodeName},
	})
	if err != nil {
		return b.Explain("send to", err)
	}
	s.event(ctx, eventSaved, "Saved "+b.Location(name))
	return nil
}

// nodeMetadata is the metadata key with the node that sent an object.
const nodeMetadata = "kedge-node"

func (s *Snapshots) listS3(ctx context.Context) ([]File, error) {
	b, err := s.s3(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var files []File
	prefix := b.Key("x")
	for object := range b.ListObjects(ctx, b.Bucket, minio.ListObjectsOptions{Prefix: prefix[:len(prefix)-1]}) {
		if object.Err != nil {
			return nil, b.Explain("list", object.Err)
		}
		name := path.Base(object.Key)
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		f := File{Name: name, Location: b.Location(name), Size: object.Size, Created: object.LastModified.UTC()}
		if _, at, ok := parseName(name, s.cfg.NodeName); ok {
			f.Node, f.Created = s.cfg.NodeName, at
		}
		files = append(files, f)
	}
	return files, nil
}

func (s *Snapshots) removeS3(ctx context.Context, name string) error {
	b, err := s.s3(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := b.RemoveObject(ctx, b.Bucket, b.Key(name), minio.RemoveObjectOptions{}); err != nil {
		return b.Explain("delete from", err)
	}
	return nil
}

// fetch writes a snapshot from S3 to target.
func fetch(ctx context.Context, b *bucket.Bucket, name, target string) error {
	ctx, cancel := context.WithTimeout(ctx, b.TransferTimeout())
	defer cancel()
	if err := b.FGetObject(ctx, b.Bucket, b.Key(name), target, minio.GetObjectOptions{}); err != nil {
		return b.Explain("fetch "+name+" from", err)
	}
	return nil
}
