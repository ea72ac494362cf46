package etcdapi

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// compactKey names the row in which kine's table keeps the revision up to which it
// is compacted. No client may delete it. When a client uses this name, kine's
// server takes another row for it (pkg/server/compact.go).
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/compact.go compactRevKey compactRevAPI
const compactKey = "compact_rev_key"

// compactKeyOfClients names that other row.
const compactKeyOfClients = "compact_rev_key_apiserver"

// keys is kine's server plus what a person needs with etcdctl. The API server
// itself writes in transactions only.
type keys struct {
	*server.KVServerBridge
	backend server.Backend
}

// Put writes a key, whether it exists or not. kine's own Put gives up if another client
// writes the key at the same time, and reports success. It panics if another client
// deletes the key (pkg/server/put.go).
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/put.go LimitedServer.Put
func (k *keys) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	key := string(r.Key)
	if r.IgnoreValue || r.IgnoreLease || key == compactKey {
		return k.KVServerBridge.Put(ctx, r)
	}
	for {
		revision, err := k.backend.Create(ctx, key, r.Value, r.Lease)
		if err == nil {
			return &pb.PutResponse{Header: header(revision)}, nil
		}
		if err != server.ErrKeyExists {
			return nil, err
		}
		_, before, err := k.backend.Get(ctx, key, 0, false)
		if err != nil {
			return nil, err
		}
		if before == nil {
			continue // another client has deleted the key since
		}
		revision, _, written, err := k.backend.Update(ctx, key, r.Value, before.ModRevision, r.Lease)
		if err != nil {
			return nil, err
		}
		if !written {
			continue // another client has written the key since
		}
		response := &pb.PutResponse{Header: header(revision)}
		if r.PrevKv {
			response.PrevKv = keyValue(before)
		}
		return response, nil
	}
}

// DeleteRange deletes a key, or all keys of a range one after the other. Each
// deletion has a revision of its own, and a key that is created meanwhile may
// stay. kine's own DeleteRange refuses.
func (k *keys) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	names := []string{string(r.Key)}
	if names[0] == compactKey {
		names[0] = compactKeyOfClients
	}
	response := &pb.DeleteRangeResponse{}
	if len(r.RangeEnd) > 0 {
		revision, found, err := k.backend.List(ctx, string(r.Key), string(r.RangeEnd), 0, 0, true)
		if err != nil {
			return nil, err
		}
		names, response.Header = nil, header(revision)
		for _, kv := range found {
			if kv.Key != compactKey {
				names = append(names, kv.Key)
			}
		}
	}
	for _, name := range names {
		revision, before, _, err := k.backend.Delete(ctx, name, 0)
		if err != nil {
			return nil, err
		}
		response.Header = header(revision)
		if before == nil {
			continue
		}
		response.Deleted++
		if r.PrevKv {
			response.PrevKvs = append(response.PrevKvs, keyValue(before))
		}
	}
	return response, nil
}

// RangeStream answers like Range, in parts. If there are more keys than the request
// wants, kine's own RangeStream returns the wrong revision: the current one of all
// keys, not the one of the list (pkg/server/rangestream.go). A request with a limit
// needs no parts.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/rangestream.go LimitedServer.RangeStream
func (k *keys) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if r.Limit == 0 {
		return k.KVServerBridge.RangeStream(r, stream)
	}
	answer, err := k.Range(stream.Context(), r)
	if err != nil {
		return err
	}
	return stream.Send(&pb.RangeStreamResponse{RangeResponse: answer})
}

func header(revision int64) *pb.ResponseHeader { return &pb.ResponseHeader{Revision: revision} }

func keyValue(kv *server.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}
