package etcdapi

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// compactKey names the row in which kine's table has the revision up to which it is
// compacted. It is nobody's to delete. A client that says this name means a row of
// its own, which kine's server finds for it (pkg/server/compact.go).
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/compact.go compactRevKey compactRevAPI
const compactKey = "compact_rev_key"

// compactKeyOfClients is the name of that row.
const compactKeyOfClients = "compact_rev_key_apiserver"

// keys is kine's server with what a person wants of etcdctl besides: the API server
// writes in transactions only.
type keys struct {
	*server.KVServerBridge
	backend server.Backend
}

// Put writes a key, whatever it is now. kine's own compares the key with the current
// revision of all keys, and so writes nothing to one that is there, and says that it
// has (pkg/server/put.go).
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
			continue // somebody has deleted it since
		}
		revision, _, written, err := k.backend.Update(ctx, key, r.Value, before.ModRevision, r.Lease)
		if err != nil {
			return nil, err
		}
		if !written {
			continue // somebody has written it since
		}
		response := &pb.PutResponse{Header: header(revision)}
		if r.PrevKv {
			response.PrevKv = keyValue(before)
		}
		return response, nil
	}
}

// DeleteRange deletes a key, or those of a range one after the other: each has a
// revision of its own, and one that comes meanwhile may stay. kine's own refuses.
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

func header(revision int64) *pb.ResponseHeader { return &pb.ResponseHeader{Revision: revision} }

func keyValue(kv *server.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}
