// Follows github.com/k3s-io/kine v0.17.5, pkg/server/watch.go.
// Follows github.com/k3s-io/kine v0.17.5, pkg/server/kv.go.
// Follows go.etcd.io/etcd/client/v3 v3.7.3, watch.go.

package direct

import (
	"context"
	"fmt"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// stream returns the name by which etcd's own client tells streams apart
// (client/v3/watch.go).
//
//upstream:follows go.etcd.io/etcd/client/v3/watch.go streamKeyFromCtx
func stream(ctx context.Context) string {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		return fmt.Sprintf("%+v", map[string][]string(md))
	}
	return ""
}

// convert returns events as kine's server does (pkg/server/watch.go, toEvents).
//
//upstream:follows github.com/k3s-io/kine/pkg/server/watch.go toEvents toEvent
func convert(events []*server.Event) []*clientv3.Event {
	converted := make([]*clientv3.Event, 0, len(events))
	for _, e := range events {
		event := &clientv3.Event{Type: mvccpb.Event_PUT, Kv: keyValue(e.KV)}
		if e.Delete {
			event.Type = mvccpb.Event_DELETE
		}
		if !e.Create {
			event.PrevKv = keyValue(e.PrevKV)
		}
		converted = append(converted, event)
	}
	return converted
}

//upstream:follows github.com/k3s-io/kine/pkg/server/kv.go toKV
func keyValue(kv *server.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}
