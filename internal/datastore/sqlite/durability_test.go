package sqlite

import (
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// leaseValue is a Lease in the form in which the API server stores it, renewed
// that many seconds after a fixed time.
func leaseValue(holder string, renewed int, change ...func(*coordination.Lease)) []byte {
	at := meta.NewMicroTime(time.Unix(1800000000+int64(renewed), 0))
	lease := &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{
			Name: "node", Namespace: "kube-node-lease",
			ManagedFields: []meta.ManagedFieldsEntry{{Manager: "kedge", Operation: "Update", Time: &meta.Time{Time: at.Time}}},
		},
		Spec: coordination.LeaseSpec{HolderIdentity: &holder, RenewTime: &at},
	}
	for _, c := range change {
		c(lease)
	}
	raw, err := lease.Marshal()
	if err != nil {
		panic(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, Raw: raw}
	encoded, err := unknown.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte("k8s\x00"), encoded...)
}

func TestIsRenewal(t *testing.T) {
	before := leaseValue("a", 1)
	other := func(change func(*coordination.Lease)) []byte { return leaseValue("a", 2, change) }
	for name, test := range map[string]struct {
		after []byte
		want  bool
	}{
		"renewal":       {leaseValue("a", 2), true},
		"other holder":  {leaseValue("b", 2), false},
		"released":      {leaseValue("", 2), false},
		"no renew time": {other(func(l *coordination.Lease) { l.Spec.RenewTime = nil }), false},
		"transition":    {other(func(l *coordination.Lease) { l.Spec.LeaseTransitions = new(int32) }), false},
		"duration":      {other(func(l *coordination.Lease) { l.Spec.LeaseDurationSeconds = new(int32) }), false},
		"label":         {other(func(l *coordination.Lease) { l.Labels = map[string]string{"a": "b"} }), false},
		"owner":         {other(func(l *coordination.Lease) { l.OwnerReferences = []meta.OwnerReference{{Name: "a"}} }), false},
		"deletion":      {other(func(l *coordination.Lease) { l.DeletionTimestamp = &meta.Time{Time: time.Unix(1, 0)} }), false},
		"manager":       {other(func(l *coordination.Lease) { l.ManagedFields[0].Manager = "b" }), false},
		"encrypted":     {[]byte("k8s:enc:aescbc:v1:key1:xyz"), false},
		"JSON":          {[]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`), false},
		"cut off":       {leaseValue("a", 2)[:40], false},
		"empty":         {nil, false},
	} {
		if got := isRenewal(before, test.after); got != test.want {
			t.Errorf("%s: got renewal %t, want %t", name, got, test.want)
		}
		if isRenewal(test.after, before) != test.want {
			t.Errorf("%s, in the other direction: got renewal %t, want %t", name, !test.want, test.want)
		}
	}
}

func TestDurability(t *testing.T) {
	renewals := [2][]byte{leaseValue("a", 1), leaseValue("a", 2)}
	for name, test := range map[string]struct {
		change change
		before *server.KeyValue
		want   durability
	}{
		"create":             {change{kind: kindCreate, key: "/registry/pods/a"}, nil, durable},
		"update":             {change{kind: kindUpdate, key: "/registry/pods/a"}, &server.KeyValue{}, durable},
		"delete":             {change{kind: kindRemove, key: "/registry/pods/a"}, &server.KeyValue{}, durable},
		"create an event":    {change{kind: kindCreate, key: "/registry/events/a", lease: 3600}, nil, deferred},
		"update an event":    {change{kind: kindUpdate, key: "/registry/events/a", lease: 3600}, &server.KeyValue{Lease: 3600}, deferred},
		"delete an event":    {change{kind: kindRemove, key: "/registry/events/a"}, &server.KeyValue{Lease: 3600}, deferred},
		"expiry":             {change{kind: kindExpire, key: "/registry/pods/a"}, &server.KeyValue{Lease: 3600}, deferred},
		"create a Lease":     {change{kind: kindCreate, key: "/registry/leases/a/a", value: renewals[0]}, nil, durable},
		"renew a Lease":      {change{kind: kindUpdate, key: "/registry/leases/a/a", value: renewals[1]}, &server.KeyValue{Value: renewals[0]}, volatile},
		"renew elsewhere":    {change{kind: kindUpdate, key: "/registry/pods/a", value: renewals[1]}, &server.KeyValue{Value: renewals[0]}, durable},
		"delete a Lease":     {change{kind: kindRemove, key: "/registry/leases/a/a"}, &server.KeyValue{Value: renewals[0]}, durable},
		"address":            {change{kind: kindCreate, key: "/registry/masterleases/a", lease: 15}, nil, durable},
		"renew an address":   {change{kind: kindUpdate, key: "/registry/masterleases/a", lease: 15}, &server.KeyValue{Lease: 15}, volatile},
		"address for longer": {change{kind: kindUpdate, key: "/registry/masterleases/a", lease: 600}, &server.KeyValue{Lease: 15}, durable},
		"address for ever":   {change{kind: kindUpdate, key: "/registry/masterleases/a"}, &server.KeyValue{Lease: 15}, durable},
		"remove an address":  {change{kind: kindRemove, key: "/registry/masterleases/a"}, &server.KeyValue{Lease: 15}, deferred},
		"last compaction":    {change{kind: kindUpdate, key: apiserverCompactKey}, &server.KeyValue{}, volatile},
	} {
		if got := durabilityOf(&test.change, test.before); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
