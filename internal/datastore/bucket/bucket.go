// Package bucket is a client of S3. Snapshots and backups are kept in buckets. The settings are the same
// for both, and so are the messages.
package bucket

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
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// attempts is how many attempts a request has.
const attempts = 3

// Scheme begins the URL of a file in a bucket.
const Scheme = "s3://"

// Bucket is a folder in a bucket.
type Bucket struct {
	*minio.Client
	config.S3
}

// Open makes a client for the bucket of the settings. If s3-config-secret is set, that Secret of the cluster overrides the settings.
// The client of the cluster is nil if the cluster does not run. The functions change the settings at last.
func Open(ctx context.Context, settings config.S3, cluster kubernetes.Interface, change ...func(*config.S3)) (*Bucket, error) {
	authority, err := withSecret(ctx, &settings, cluster)
	if err != nil {
		return nil, err
	}
	for _, do := range change {
		do(&settings)
	}
	return New(settings, authority)
}

// withSecret changes the settings as s3-config-secret says. It returns the authority that is in the Secret.
func withSecret(ctx context.Context, settings *config.S3, cluster kubernetes.Interface) (authority []byte, err error) {
	if settings.ConfigSecret == "" {
		return nil, nil
	}
	if cluster == nil {
		return nil, fmt.Errorf("s3-config-secret %s is in the cluster, which does not run: set the bucket and the keys with the other s3 flags", settings.ConfigSecret)
	}
	secret, err := cluster.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, settings.ConfigSecret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read s3-config-secret in the namespace %s: %w", metav1.NamespaceSystem, err)
	}
	authority, err = Overlay(settings, secret.Data)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", settings.ConfigSecret, err)
	}
	return authority, nil
}

// Overlay replaces settings by the values in a Secret that are not empty. The Secret's
// keys are those of the configuration, or k3s's, which begin with etcd-. s3-endpoint-ca is
// the authority itself, in PEM.
func Overlay(settings *config.S3, data map[string][]byte) (authority []byte, err error) {
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

// New makes a client for the bucket of the settings. It trusts authority, in PEM, in
// addition to the system's authorities.
func New(settings config.S3, authority []byte) (*Bucket, error) {
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
	// No connection stays open between two requests.
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
		Transport: transport, MaxRetries: attempts, BucketLookup: lookups[settings.BucketLookupType],
	})
	if err != nil {
		return nil, fmt.Errorf("use s3-endpoint %s: %w", settings.Endpoint, err)
	}
	return &Bucket{client, settings}, nil
}

// lookups are the values of s3-bucket-lookup-type.
var lookups = map[string]minio.BucketLookupType{"": minio.BucketLookupAuto, "auto": minio.BucketLookupAuto, "dns": minio.BucketLookupDNS, "path": minio.BucketLookupPath}

// Key returns the object name of a file in the bucket.
func (b *Bucket) Key(name string) string {
	return strings.TrimPrefix(path.Join(b.Folder, name), "/")
}

// Location returns the URL of a file.
func (b *Bucket) Location(name string) string {
	return Scheme + path.Join(b.Bucket, b.Key(name))
}

// Explain adds to err what the user can do.
func (b *Bucket) Explain(what string, err error) error {
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
	case code == "RequestTimeTooSkewed":
		hint = ": set this host's clock: S3's differs by more than 15 minutes"
	case code == "QuotaExceeded", code == "XMinioStorageFull", code == "InsufficientStorage":
		hint = ": the bucket is full: make room, or set another"
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
