package sqlite

import (
	"bytes"
	"strings"

	"github.com/k3s-io/kine/pkg/server"
	coordination "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	eventPrefix = "/registry/events/"
	leasePrefix = "/registry/leases/"
	// apiserverCompactKey is where kine's server keeps the API server's key of
	// the name compact_rev_key (pkg/server/compact.go): that of the last
	// compaction, every 5 minutes.
	//upstream:relies-on github.com/k3s-io/kine/pkg/server/compact.go compactRevAPI
	apiserverCompactKey = "compact_rev_key_apiserver"
	// shortLease is how many seconds a key may live that is not worth writing:
	// it would be gone soon after a restart. It is that of an API server's own
	// address, /registry/masterleases.
	shortLease = 60
)

// durabilityOf tells what a change of a key that had the value kv is worth. What
// is not known to be worth less is durable.
func durabilityOf(c *change, kv *server.KeyValue) durability {
	switch c.kind {
	case kindCreate:
		if strings.HasPrefix(c.key, eventPrefix) {
			return deferred
		}
	case kindRemove, kindExpire:
		if c.kind == kindExpire || isShort(kv.Lease) || strings.HasPrefix(c.key, eventPrefix) {
			return deferred
		}
	case kindUpdate:
		switch {
		case strings.HasPrefix(c.key, eventPrefix):
			return deferred
		case c.key == apiserverCompactKey, isShort(kv.Lease) && isShort(c.lease):
			return volatile
		case strings.HasPrefix(c.key, leasePrefix) && c.lease == kv.Lease && isRenewal(kv.Value, c.value):
			return volatile
		}
	}
	return durable
}

func isShort(lease int64) bool { return lease > 0 && lease < shortLease }

// isRenewal tells whether two values are the same Lease (coordination.k8s.io)
// but for the time of its renewal. An observer that sees a renewal undone waits
// for a full term again, so that is all a crash can do. One that is encrypted
// cannot be told.
func isRenewal(before, after []byte) bool {
	old, ok := decodeLease(before)
	if !ok {
		return false
	}
	renewed, ok := decodeLease(after)
	if !ok || old.Spec.RenewTime == nil || renewed.Spec.RenewTime == nil {
		return false
	}
	for _, lease := range []*coordination.Lease{old, renewed} {
		lease.Spec.RenewTime = nil
		for i := range lease.ManagedFields {
			lease.ManagedFields[i].Time = (*meta.Time)(nil)
		}
	}
	return equality.Semantic.DeepEqual(old, renewed)
}

// protobufPrefix is that of what the API server stores
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
//
//upstream:relies-on k8s.io/apimachinery/pkg/runtime/serializer/protobuf/protobuf.go protoEncodingPrefix
var protobufPrefix = []byte("k8s\x00")

func decodeLease(value []byte) (*coordination.Lease, bool) {
	encoded, ok := bytes.CutPrefix(value, protobufPrefix)
	if !ok {
		return nil, false
	}
	var unknown runtime.Unknown
	if unknown.Unmarshal(encoded) != nil || unknown.APIVersion != "coordination.k8s.io/v1" ||
		unknown.Kind != "Lease" || unknown.ContentEncoding != "" {
		return nil, false
	}
	lease := &coordination.Lease{}
	return lease, lease.Unmarshal(unknown.Raw) == nil
}
