package snapshot

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil/s3"
)

// TestS3Faults makes one setting wrong at a time, and wants an error that names
// it.
func TestS3Faults(t *testing.T) {
	remote := httptest.NewTLSServer(&s3.Server{Bucket: "backups", AccessKey: "user"})
	defer remote.Close()
	folder := t.TempDir()
	authority, empty := filepath.Join(folder, "ca.crt"), filepath.Join(folder, "empty.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: remote.Certificate().Raw})
	if err := errors.Join(os.WriteFile(authority, text, 0o600), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*config.S3)
		want   string
	}{
		"nothing":           {func(*config.S3) {}, ""},
		"not checked":       {func(s *config.S3) { s.EndpointCA, s.SkipSSLVerify = "", true }, ""},
		"another key":       {func(s *config.S3) { s.AccessKey = "other" }, "check s3-access-key"},
		"another bucket":    {func(s *config.S3) { s.Bucket = "missing" }, "make the bucket"},
		"no bucket":         {func(s *config.S3) { s.Bucket = "" }, "s3-bucket is not set"},
		"unknown authority": {func(s *config.S3) { s.EndpointCA = "" }, "s3-endpoint-ca"},
		"no authority":      {func(s *config.S3) { s.EndpointCA = empty }, "no certificate in PEM"},
		"no such file":      {func(s *config.S3) { s.EndpointCA = folder + "/none" }, "read s3-endpoint-ca"},
		"nobody there":      {func(s *config.S3) { s.Endpoint = "127.0.0.1:1" }, "check s3-endpoint"},
		"no proxy":          {func(s *config.S3) { s.Proxy = "http://edge:hush@127.0.0.1:1" }, "check s3-proxy and s3-endpoint"},
		"a Secret":          {func(s *config.S3) { s.ConfigSecret = "s3" }, "set the bucket and the keys with the other s3 flags"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Settings: config.Default().Server.Snapshots}
			cfg.Settings.S3Settings = config.S3{
				Endpoint: strings.TrimPrefix(remote.URL, "https://"), EndpointCA: authority,
				Bucket: "backups", Region: "us-east-1", AccessKey: "user", SecretKey: "secret",
			}
			test.change(&cfg.Settings.S3Settings)
			_, err := New(cfg).listS3(t.Context())
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("the password of the proxy is told: %v", err)
			}
		})
	}
}

// TestExplain says which setting mends a refusal by S3, or a transfer that takes too long.
func TestExplain(t *testing.T) {
	b := &bucket{S3: config.S3{Bucket: "backups", Endpoint: "s3.test", Timeout: "3s"}}
	for want, fault := range map[string]error{
		"s3-session-token too":           minio.ErrorResponse{Code: "AccessDenied"},
		"set s3-session-token":           minio.ErrorResponse{Code: "ExpiredToken"},
		"s3-timeout, which is 3s":        &url.Error{Op: "Put", URL: "https://s3.test", Err: context.DeadlineExceeded},
		"check that this host can reach": &url.Error{Op: "Put", URL: "https://s3.test", Err: errors.New("reset")},
	} {
		if err := b.explain("send to", fault); !errors.Is(err, fault) || !strings.Contains(err.Error(), want) {
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
	authority, err := overlay(&settings, text(map[string]string{
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
		if _, err := overlay(&settings, text(map[string]string{key: value})); err == nil {
			t.Errorf("%s %s is accepted", key, value)
		}
	}
}

// TestScheduleWithoutS3 prunes snapshots on this host while S3 is away.
func TestScheduleWithoutS3(t *testing.T) {
	cfg := server(t, "all", "token")
	cfg.Settings.ScheduleCron, cfg.Settings.Retention = "@every 1s", 1
	cfg.Settings.S3, cfg.Settings.S3Settings = true, config.S3{Endpoint: "127.0.0.1:1", Insecure: true, Bucket: "backups", AccessKey: "a", SecretKey: "s", Region: "x"}
	s := quick(cfg)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.keepSchedule(ctx); close(done) }()
	for cfg.Store.(*store).saves.Load() < 4 {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	<-done
	if files, err := cfg.listFolder(); err != nil || len(files) > 2 {
		t.Errorf("%d snapshots are left, %v", len(files), err)
	}
}

// TestS3Later sends the snapshots that could not be sent before, as far as prune
// keeps them, and no others.
func TestS3Later(t *testing.T) {
	store := &s3.Server{Bucket: "backups", AccessKey: "a"}
	remote := httptest.NewServer(store)
	defer remote.Close()
	cfg := server(t, "all", "token")
	cfg.Settings.Retention, cfg.Settings.S3 = 2, true
	cfg.Settings.S3Settings = config.S3{Endpoint: "127.0.0.1:1", Insecure: true, Bucket: "backups", AccessKey: "a", SecretKey: "s", Region: "x"}
	away := quick(cfg)
	var names []string
	for range 3 {
		file, err := away.save(t.Context(), OnDemand)
		if file == nil || err == nil || !strings.Contains(err.Error(), file.Name) || !strings.Contains(err.Error(), "The next save will send it too") {
			t.Fatalf("save while S3 is down: got %v, %v, want the file and an error that says when it is sent", file, err)
		}
		names = append(names, file.Name)
	}
	// These are another server's snapshot, and a damaged one.
	for name, text := range map[string]string{"on-demand-other-7.zst": "x", fileName("broken", "pi", time.Unix(7, 0)): "x"} {
		if err := os.WriteFile(filepath.Join(cfg.folder(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Settings.S3Settings.Endpoint = strings.TrimPrefix(remote.URL, "http://")
	back := quick(cfg)
	for range 2 {
		file, err := back.save(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, file.Name)
	}
	// Of the three snapshots of one name, two are kept.
	if want := slices.Sorted(slices.Values(names[1:])); !slices.Equal(store.Keys(), want) {
		t.Errorf("in S3 are %q, want %q", store.Keys(), want)
	}
	// By the location that a save has printed.
	for location, want := range map[string]string{
		back.locationS3(names[4]): "",
		"s3://other/" + names[4]:  "set s3-bucket",
	} {
		path, err := find(t.Context(), cfg, location, t.TempDir())
		if want == "" && (err != nil || filepath.Base(path) != names[4]) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("find %s: got %q, %v, want %q", location, path, err, want)
		}
	}
	cfg.Settings.S3 = false
	if _, err := find(t.Context(), cfg, "s3://backups/"+names[4], t.TempDir()); err == nil || !strings.Contains(err.Error(), "set s3 ") {
		t.Errorf("find in S3 without the setting: got error %v, want one that names it", err)
	}
}

func TestElsewhere(t *testing.T) {
	cfg := server(t, "all", "token")
	cfg.Elsewhere = errors.New("the API's objects are in another etcd")
	if _, err := New(cfg).save(t.Context(), OnDemand); !errors.Is(err, cfg.Elsewhere) {
		t.Errorf("save: got error %v, want %v", err, cfg.Elsewhere)
	}
	if _, err := Restore(t.Context(), cfg, "x", ""); !errors.Is(err, cfg.Elsewhere) {
		t.Errorf("restore: got error %v, want %v", err, cfg.Elsewhere)
	}
	New(cfg).keepSchedule(t.Context()) // returns at once
}
