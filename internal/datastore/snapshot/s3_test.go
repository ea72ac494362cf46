package snapshot

import (
	"context"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
