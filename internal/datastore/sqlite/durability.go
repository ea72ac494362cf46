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
	// apiserverCompactKey is where kine's server keeps the API server's key
	// compact_rev_key (pkg/server/compact.go): the revision of the last
	// compaction, updated every 5 minutes.
	//upstream:relies-on github.com/k3s-io/kine/pkg/server/compact.go compactRevAPI
	apiserverCompactKey = "compact_rev_key_apiserver"
	// shortLease is a lifetime in seconds. A key that lives for less is not worth
	// writing: it would be gone soon after a restart. An API server's own
	// address, /registry/masterleases, is such a key.
	shortLease = 60
)

// durabilityOf returns the durability of a change to a key that had the value kv.
// A change is durable unless it is known to need less.
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
// except for the time of the renewal. A crash can only undo such a renewal, and
// an observer that sees this waits for a full term again. An encrypted Lease is
// never taken for a renewal.
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

// protobufPrefix begins the values that the API server stores as protobuf
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
