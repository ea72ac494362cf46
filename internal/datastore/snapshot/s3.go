package snapshot

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

const (
	// requestTimeout limits requests that transfer no snapshot: s3-timeout is for those.
	requestTimeout = time.Minute
	// s3Attempts is how many attempts a request has.
	s3Attempts = 3
)

// bucket is the place for snapshots in S3.
type bucket struct {
	client *minio.Client
	config.S3
}

// s3 returns the bucket. If s3-config-secret is set, that Secret overrides the
// settings.
func (s *Snapshots) s3(ctx context.Context) (*bucket, error) {
	settings := s.cfg.Settings.S3Settings
	var authority []byte
	if settings.ConfigSecret != "" {
		if s.client == nil {
			return nil, fmt.Errorf("s3-config-secret %s is in the cluster, which does not run: set the bucket and the keys with the other s3 flags", settings.ConfigSecret)
		}
		secret, err := s.client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, settings.ConfigSecret, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read s3-config-secret in the namespace %s: %w", metav1.NamespaceSystem, err)
		}
		if authority, err = overlay(&settings, secret.Data); err != nil {
			return nil, fmt.Errorf("read Secret %s: %w", settings.ConfigSecret, err)
		}
	}
	return newBucket(settings, authority)
}

// kept returns how many scheduled snapshots are kept at a place: schemeS3, or another.
func (s *Snapshots) kept(ctx context.Context, place string) int {
	if place == schemeS3 {
		if b, err := s.s3(ctx); err == nil && b.Retention > 0 {
			return b.Retention
		}
	}
	return s.cfg.Settings.Retention
}

// overlay replaces settings by the values in a Secret that are not empty. The Secret's
// keys are those of the configuration, or k3s's, which begin with etcd-. s3-endpoint-ca is
// the authority itself, in PEM.
func overlay(settings *config.S3, data map[string][]byte) (authority []byte, err error) {
	data = maps.Clone(data)
	for key, value := range data {
		if name, theirs := strings.CutPrefix(key, "etcd-"); theirs && len(data[name]) == 0 {
			data[name] = value
		}
	}
	for key, target := range map[string]*string{
		"s3-endpoint": &settings.Endpoint, "s3-bucket": &settings.Bucket, "s3-region": &settings.Region,
		"s3-folder": &settings.Folder, "s3-access-key": &settings.AccessKey, "s3-secret-key": &settings.SecretKey,
		"s3-session-token": &settings.SessionToken, "s3-bucket-lookup-type": &settings.BucketLookupType,
		"s3-proxy": &settings.Proxy, "s3-timeout": &settings.Timeout,
	} {
		if value := strings.TrimSpace(string(data[key])); value != "" {
			*target = value
		}
	}
	if name := bytes.TrimSpace(data["s3-endpoint-ca-name"]); len(name) > 0 {
		return nil, fmt.Errorf("etcd-s3-endpoint-ca-name is the ConfigMap %s, which kedge does not read: copy its certificates into the Secret, as the key s3-endpoint-ca", name)
	}
	if timeout, err := time.ParseDuration(settings.Timeout); settings.Timeout != "" && (err != nil || timeout <= 0) {
		return nil, errors.New("s3-timeout is not a duration: write one such as 30m")
	}
	for key, target := range map[string]*bool{"s3-insecure": &settings.Insecure, "s3-skip-ssl-verify": &settings.SkipSSLVerify} {
		if value := strings.TrimSpace(string(data[key])); value != "" {
			if *target, err = strconv.ParseBool(value); err != nil {
				return nil, fmt.Errorf("%s is neither true nor false", key)
			}
		}
	}
	if value := strings.TrimSpace(string(data["s3-retention"])); value != "" {
		if settings.Retention, err = strconv.Atoi(value); err != nil || settings.Retention < 0 {
			return nil, errors.New("s3-retention is not a number")
		}
	}
	if len(bytes.TrimSpace(data["s3-endpoint-ca"])) == 0 {
		return nil, nil
	}
	return data["s3-endpoint-ca"], nil
}

// newBucket makes a client for the bucket. It trusts authority, in PEM, in
// addition to the system's authorities.
func newBucket(settings config.S3, authority []byte) (*bucket, error) {
	if settings.Bucket == "" {
		return nil, errors.New("s3-bucket is not set: set it to the bucket for snapshots")
	}
	if settings.EndpointCA != "" && authority == nil {
		var err error
		if authority, err = datadir.ReadText(settings.EndpointCA); err != nil {
			return nil, fmt.Errorf("read s3-endpoint-ca: %w", err)
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// No connection stays open between two snapshots.
	transport.DisableKeepAlives = true
	// #nosec G402: the user's own choice.
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: settings.SkipSSLVerify}
	if authority != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(authority) {
			return nil, errors.New("s3-endpoint-ca contains no certificate in PEM")
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	if settings.Proxy != "" {
		proxy, err := url.Parse(settings.Proxy)
		if err != nil {
			// The address may have a password.
			return nil, errors.New("s3-proxy is not the address of a proxy: use http://HOST:PORT")
		}
		transport.Proxy = http.ProxyURL(proxy)
	}
	// Without keys, the client uses the machine's role in a cloud, as other S3 programs do.
	keys := credentials.NewStaticV4(settings.AccessKey, settings.SecretKey, settings.SessionToken)
	if settings.AccessKey == "" && settings.SecretKey == "" {
		keys = credentials.NewIAM("")
	}
	client, err := minio.New(settings.Endpoint, &minio.Options{
		Creds: keys, Secure: !settings.Insecure, Region: settings.Region,
		Transport: transport, MaxRetries: s3Attempts, BucketLookup: lookups[settings.BucketLookupType],
	})
	if err != nil {
		return nil, fmt.Errorf("use s3-endpoint %s: %w", settings.Endpoint, err)
	}
	return &bucket{client, settings}, nil
}

// lookups are the values of s3-bucket-lookup-type.
var lookups = map[string]minio.BucketLookupType{"": minio.BucketLookupAuto, "auto": minio.BucketLookupAuto, "dns": minio.BucketLookupDNS, "path": minio.BucketLookupPath}

// key returns the object name of a file in the bucket.
func (b *bucket) key(name string) string {
	return strings.TrimPrefix(path.Join(b.Folder, name), "/")
}

func (b *bucket) location(name string) string {
	return schemeS3 + path.Join(b.Bucket, b.key(name))
}

// locationS3 returns where a file of that name would be, as far as the settings
// tell.
func (s *Snapshots) locationS3(name string) string {
	return (&bucket{S3: s.cfg.Settings.S3Settings}).location(name)
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
	for _, f := range append(there, surplus(here, s.cfg.NodeName, "", s.kept(ctx, schemeS3))...) {
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
	_, err = b.client.FPutObject(ctx, b.Bucket, b.key(name), filepath.Join(s.cfg.folder(), name), minio.PutObjectOptions{
		ContentType: "application/zstd", NumThreads: 1,
		UserMetadata: map[string]string{nodeMetadata: s.cfg.NodeName},
	})
	if err != nil {
		return b.explain("send to", err)
	}
	s.event(ctx, eventSaved, "Saved "+b.location(name))
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
	prefix := b.key("x")
	for object := range b.client.ListObjects(ctx, b.Bucket, minio.ListObjectsOptions{Prefix: prefix[:len(prefix)-1]}) {
		if object.Err != nil {
			return nil, b.explain("list", object.Err)
		}
		name := path.Base(object.Key)
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		f := File{Name: name, Location: b.location(name), Size: object.Size, Created: object.LastModified.UTC()}
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
	if err := b.client.RemoveObject(ctx, b.Bucket, b.key(name), minio.RemoveObjectOptions{}); err != nil {
		return b.explain("delete from", err)
	}
	return nil
}

// fetch writes a snapshot from S3 to target.
func (b *bucket) fetch(ctx context.Context, name, target string) error {
	ctx, cancel := context.WithTimeout(ctx, b.TransferTimeout())
	defer cancel()
	if err := b.client.FGetObject(ctx, b.Bucket, b.key(name), target, minio.GetObjectOptions{}); err != nil {
		return b.explain("fetch "+name+" from", err)
	}
	return nil
}

// explain adds to err what the user can do.
func (b *bucket) explain(what string, err error) error {
	hint := ""
	var unknown x509.UnknownAuthorityError
	var dial *net.OpError
	var request *url.Error
	switch code := minio.ToErrorResponse(err).Code; {
	case code == "NoSuchBucket":
		hint = ": make the bucket, or set another with s3-bucket"
	case code == "NoSuchKey":
		hint = ": `kedge snapshot list` lists what is there"
	case code == "AccessDenied", code == "InvalidAccessKeyId", code == "SignatureDoesNotMatch":
		hint = ": check s3-access-key and s3-secret-key, and their rights in the bucket. Temporary keys need s3-session-token too"
	case code == "InvalidToken", code == "ExpiredToken":
		hint = ": set s3-session-token, s3-access-key and s3-secret-key to new ones"
	case code == "AuthorizationHeaderMalformed", code == "PermanentRedirect":
		hint = ": check s3-region"
	case errors.As(err, &unknown):
		hint = ": set s3-endpoint-ca to the authority of its certificate"
	case errors.Is(err, context.DeadlineExceeded):
		hint = fmt.Sprintf(": check s3-endpoint, and check that this host can reach it. A transfer may take s3-timeout, which is %s", b.TransferTimeout())
	case b.Proxy != "" && (errors.As(err, &dial) || errors.As(err, &request)):
		hint = ": check s3-proxy and s3-endpoint, and check that this host can reach the proxy"
	case errors.As(err, &dial), errors.As(err, &request):
		hint = ": check s3-endpoint, and check that this host can reach it"
	}
	return fmt.Errorf("%s s3://%s at %s: %w%s", what, b.Bucket, b.Endpoint, err, hint)
}
