// Follows go.etcd.io/etcd/client/v3 v3.7.3, kubernetes/client.go.

package sizes

import "go.etcd.io/etcd/api/v3/etcdserverpb"

// Change returns the transaction by which the API server changes an object.
//
//upstream:follows go.etcd.io/etcd/client/v3/kubernetes/client.go Client.OptimisticPut
func Change(key, value []byte, revision, lease int64) *etcdserverpb.TxnRequest {
	return &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{{
			Key: key, Target: etcdserverpb.Compare_MOD, Result: etcdserverpb.Compare_EQUAL,
			TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: revision},
		}},
		Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{
			RequestPut: &etcdserverpb.PutRequest{Key: key, Value: value, Lease: lease},
		}}},
		Failure: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{
			RequestRange: &etcdserverpb.RangeRequest{Key: key},
		}}},
	}
}
