package place

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/kedge-dev/kedge/internal/datastore/bucket"
)

// remote is a folder in a bucket. Only conditional writes make one of two servers succeed.
type remote struct{ *bucket.Bucket }

// String implements Place. It is the URL that the user has set.
func (r remote) String() string {
	return bucket.Scheme + path.Join(r.Endpoint, r.Bucket.Bucket, r.Folder)
}

// Prepare implements Place. It tries whether S3 refuses to create a file twice.
func (r remote) Prepare(ctx context.Context) error {
	probe := "probe-" + rand.Text()
	defer func() { _ = r.Remove(context.WithoutCancel(ctx), probe) }() // where nothing may be deleted, it stays
	if err := r.Create(ctx, probe, []byte(mark)); err != nil {
		return err
	}
	switch err := r.Create(ctx, probe, []byte(mark)); {
	case err == nil:
		return fmt.Errorf("%s creates a file twice. A backup needs S3 with conditional writes (If-None-Match), so that two servers cannot spoil it: use another S3, or a folder", r)
	case !errors.Is(err, ErrExists):
		return err
	}
	err := r.Create(ctx, markName, []byte(mark))
	if errors.Is(err, ErrExists) {
		return nil
	}
	return err
}

// Create implements Place.
func (r remote) Create(ctx context.Context, name string, content []byte) error {
	// A bucket with object lock refuses a file without a checksum.
	options := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true, SendContentMd5: true}
	options.SetMatchETagExcept("*")
	ctx, cancel := context.WithTimeout(ctx, r.TransferTimeout())
	defer cancel()
	_, err := r.PutObject(ctx, r.Bucket.Bucket, r.Key(name), bytes.NewReader(content), int64(len(content)), options)
	switch minio.ToErrorResponse(err).Code {
	case "PreconditionFailed", "ConditionalRequestConflict":
		return fmt.Errorf("make %s: %w", r.Location(name), ErrExists)
	}
	if err != nil {
		return r.Explain("send to", err)
	}
	return nil
}

// Read implements Place.
func (r remote) Read(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.TransferTimeout())
	defer cancel()
	object, err := r.GetObject(ctx, r.Bucket.Bucket, r.Key(name), minio.GetObjectOptions{})
	if err != nil {
		return nil, r.Explain("read from", err)
	}
	defer object.Close()
	content, err := readAll(object, r.Location(name))
	switch response := minio.ToErrorResponse(err); {
	case response.Code == "NoSuchKey":
		return nil, fmt.Errorf("read %s: %w", r.Location(name), ErrNotFound)
	case response.Code != "":
		return nil, r.Explain("read from", err)
	}
	return content, err
}

// Names implements Place.
func (r remote) Names(ctx context.Context, folder string) ([]string, error) {
	prefix := r.Key(folder) + "/"
	if folder == "" {
		prefix = r.Key("x")
		prefix = prefix[:len(prefix)-1]
	}
	var names []string
	for object := range r.ListObjects(ctx, r.Bucket.Bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if object.Err != nil {
			return nil, r.Explain("list", object.Err)
		}
		names = append(names, strings.TrimPrefix(object.Key, prefix))
	}
	slices.Sort(names)
	return names, nil
}

// Remove implements Place.
func (r remote) Remove(ctx context.Context, name string) error {
	if err := r.RemoveObject(ctx, r.Bucket.Bucket, r.Key(name), minio.RemoveObjectOptions{}); err != nil {
		return r.Explain("delete from", err)
	}
	return nil
}
