package join

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// noSpace is a datastore that takes no transaction.
type noSpace struct {
	clientv3.KV
	t *testing.T
}

func (n noSpace) Txn(ctx context.Context) clientv3.Txn {
	n.t.Error("a start writes to a datastore that has the settings")
	return n.KV.Txn(ctx)
}

// TestFixedSettings changes each fixed setting after the first start, and others.
func TestFixedSettings(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Start(t)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	began := config.Default().Cluster
	start := func(cluster config.Cluster) error {
		return compareFixed(t.Context(), client, cluster)
	}
	if err := start(began); err != nil {
		t.Fatal(err)
	}
	for key, change := range map[string]func(*config.Cluster){
		"cluster-cidr is 10.50.0.0/16, and this cluster began with 10.42.0.0/16": func(c *config.Cluster) { c.ClusterCIDR = []string{"10.50.0.0/16"} },
		"service-cidr is 10.43.0.0/16,fd00::/112, and":                           func(c *config.Cluster) { c.ServiceCIDR = []string{"10.43.0.0/16", "fd00::/112"} },
		"set `cluster-domain: cluster.local`":                                    func(c *config.Cluster) { c.ClusterDomain = "example.org" },
	} {
		now := began
		change(&now)
		if err := start(now); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("got %v, want %q", err, key)
		}
	}
	now := began
	now.ClusterDNS, now.FlannelBackend, now.Disable = []string{"10.43.0.11"}, "host-gw", []string{"gateway"}
	if err := start(now); err != nil {
		t.Errorf("settings that can change: %v", err)
	}
	if err := start(began); err != nil {
		t.Errorf("the settings of the first start, again: %v", err)
	}
	if err := compareFixed(t.Context(), noSpace{client, t}, began); err != nil {
		t.Errorf("a datastore without space: %v", err)
	}
	if _, err := client.Put(t.Context(), FixedKey, `{"cluster-cidr": "10.42.0.0/16"}`); err != nil {
		t.Fatal(err)
	}
	now.ClusterDomain = "example.org"
	if err := start(now); err != nil {
		t.Errorf("a cluster that has not kept a setting: %v", err)
	}
	if len(fixed(began)) != len(Fixed) {
		t.Errorf("%v are settings of the cluster, want %v", fixed(began), Fixed)
	}
}

// slowStore is a datastore that answers after ten minutes, and fails at first.
type slowStore struct {
	clientv3.KV
	value           string
	asked, failures int
}

func (s *slowStore) Get(ctx context.Context, _ string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	s.asked++
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(10 * time.Minute):
	}
	if s.asked <= s.failures {
		return nil, errors.New("no leader")
	}
	return &clientv3.GetResponse{Kvs: []*mvccpb.KeyValue{{Value: []byte(s.value)}}}, nil
}

// TestFixedSettingsSlowly has a datastore that answers only at the fourth attempt. The start waits for the
// answer. It ends if the settings differ, or if they cannot be decoded.
func TestFixedSettingsSlowly(t *testing.T) {
	for value, want := range map[string]string{
		`{"cluster-cidr": "10.42.0.0/16"}`: "",
		`{"cluster-cidr": "10.50.0.0/16"}`: "cluster-cidr is 10.42.0.0/16",
		`{"cluster-cidr": `:                "decode the cluster's settings",
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &slowStore{value: value, failures: 3}
			err := compareFixed(t.Context(), store, config.Default().Cluster)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: got %v, want %q", value, err, want)
			}
			if store.asked != 4 {
				t.Errorf("%s: the datastore was asked %d times, want 4", value, store.asked)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := compareFixed(ctx, &slowStore{failures: 100}, config.Default().Cluster); err == nil {
				t.Error("no error of a start that was stopped")
			}
		})
	}
}
