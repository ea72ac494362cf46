package bucket

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// TestExplain says which setting mends a refusal by S3, or a transfer that takes too long.
func TestExplain(t *testing.T) {
	b := &Bucket{S3: config.S3{Bucket: "backups", Endpoint: "s3.test", Timeout: "3s"}}
	for want, fault := range map[string]error{
		"s3-session-token too":           minio.ErrorResponse{Code: "AccessDenied"},
		"set s3-session-token":           minio.ErrorResponse{Code: "ExpiredToken"},
		"s3-timeout, which is 3s":        &url.Error{Op: "Put", URL: "https://s3.test", Err: context.DeadlineExceeded},
		"check that this host can reach": &url.Error{Op: "Put", URL: "https://s3.test", Err: errors.New("reset")},
	} {
		if err := b.Explain("send to", fault); !errors.Is(err, fault) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestOverlay reads a Secret with kedge's keys and with k3s's, as k3s documents it.
func TestOverlay(t *testing.T) {
	text := func(pairs map[string]string) map[string][]byte {
		data := map[string][]byte{}
		for key, value := range pairs {
			data[key] = []byte(value)
		}
		return data
	}
	settings := config.Default().Server.Snapshots.S3Settings
	authority, err := Overlay(&settings, text(map[string]string{
		"etcd-s3-endpoint": "", "etcd-s3-endpoint-ca": "", "etcd-s3-endpoint-ca-name": "", "etcd-s3-skip-ssl-verify": "false",
		"etcd-s3-access-key": "k", "etcd-s3-secret-key": "s", "etcd-s3-session-token": "t", "etcd-s3-bucket": "theirs", "etcd-s3-folder": "f",
		"etcd-s3-region": "eu", "etcd-s3-insecure": "true", "etcd-s3-timeout": "5m", "etcd-s3-proxy": "http://p:1", "etcd-s3-retention": "3",
		"etcd-s3-bucket-lookup-type": "path", "s3-bucket": "ours",
	}))
	want := config.S3{
		Endpoint: "s3.amazonaws.com", AccessKey: "k", SecretKey: "s", SessionToken: "t", Bucket: "ours", Folder: "f", Region: "eu", Insecure: true,
		Timeout: "5m", Proxy: "http://p:1", Retention: 3, BucketLookupType: "path",
	}
	if err != nil || authority != nil || settings != want {
		t.Errorf("got %+v, %q, %v, want %+v", settings, authority, err, want)
	}
	for key, value := range map[string]string{"etcd-s3-timeout": "soon", "s3-retention": "many", "s3-insecure": "perhaps", "etcd-s3-endpoint-ca-name": "trust"} {
		if _, err := Overlay(&settings, text(map[string]string{key: value})); err == nil {
			t.Errorf("%s %s is accepted", key, value)
		}
	}
}
