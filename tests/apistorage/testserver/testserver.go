// Package testserver is compiled in the place of k8s.io/apiserver/pkg/storage/etcd3/testserver, from which upstream's
// tests of its storage get an etcd. Here they get a datastore of kedge.
package testserver

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/kedge-dev/kedge/tests/apistorage/datastores"
)

// NewTestConfig returns settings of an etcd. RunEtcd ignores them: kedge's datastores have settings of their own.
func NewTestConfig(testing.TB) *embed.Config { return embed.NewConfig() }

// RunEtcd starts a datastore of kedge, and returns a client that counts requests as upstream's does.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/testserver/test_server.go RunEtcd
func RunEtcd(t testing.TB, _ *embed.Config) *kubernetes.Client {
	t.Helper()
	client := datastores.Start(t)
	// The API server of kedge asks the same, because a client in the process has no endpoint to ask.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(t.Context(), endpoint{client.Client}, storage.RequestWatchProgress)
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}

// endpoint is a client with one endpoint.
type endpoint struct{ *clientv3.Client }

// Endpoints returns the endpoint.
func (endpoint) Endpoints() []string { return []string{"datastore"} }
