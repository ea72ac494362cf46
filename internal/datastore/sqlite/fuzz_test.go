package sqlite

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/etcdapi"
)

// fuzzed is a datastore with a client that sends arbitrary bytes.
type fuzzed struct {
	*Backend
	client *grpc.ClientConn
	// last is the highest revision that was seen.
	last int64
	runs int
}

// rawCodec sends and returns bytes unchanged.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

func newFuzzed(f *testing.F) *fuzzed {
	f.Helper()
	logrus.SetOutput(io.Discard)
	folder := shortDir(f)
	backend := start(f, folder).Backend
	socket := filepath.Join(folder, "kine.sock")
	api, err := etcdapi.Serve(etcdapi.Config{Backend: backend, Meter: backend.meter, Socket: socket, Answer: backend.faults.answerUnary})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(api.Close)
	client, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = client.Close() })
	return &fuzzed{Backend: backend, client: client}
}

// call sends a request, which must be answered, and decodes the answer if there is one.
func (z *fuzzed) call(t *testing.T, method string, request []byte, answer proto.Message) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var response []byte
	err := z.client.Invoke(ctx, method, &request, &response)
	if ctx.Err() != nil {
		t.Fatalf("%s is not answered: %v", method, err)
	}
	if err != nil || answer == nil {
		return err == nil
	}
	if err := proto.Unmarshal(response, answer); err != nil {
		t.Fatalf("the answer of %s: %v", method, err)
	}
	return true
}

// check checks that the datastore is consistent, and removes it.
func (z *fuzzed) check(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := z.faults.err(); err != nil {
		t.Fatalf("the datastore has failed: %v", err)
	}
	const first, end = "", "\xff\xff\xff\xff\xff\xff"
	revision, kvs, err := z.List(ctx, first, end, 0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if revision < z.last {
		t.Errorf("the revision was %d, and is %d", z.last, revision)
	}
	z.last = revision
	if _, count, err := z.Count(ctx, first, end, 0); err != nil || count != int64(len(kvs)) {
		t.Errorf("got count %[2]d, %[3]v, want %[1]d", len(kvs), count, err)
	}
	if !slices.IsSortedFunc(kvs, func(a, b *server.KeyValue) int { return strings.Compare(a.Key, b.Key) }) {
		t.Error("the keys are not in order")
	}
	for i, kv := range kvs {
		if kv.CreateRevision > kv.ModRevision || kv.ModRevision > revision || i > 0 && kvs[i-1].Key == kv.Key {
			t.Errorf("at revision %d there is %s", revision, keyText(kv))
		}
		if _, alone, err := z.Get(ctx, kv.Key, 0, false); err != nil || keyText(alone) != keyText(kv) {
			t.Errorf("%s is %s when it is asked for alone: %v", keyText(kv), keyText(alone), err)
		}
		if kv.Key != server.HealthKey && kv.Key != compactKey {
			if _, _, _, err := z.Delete(ctx, kv.Key, 0); err != nil {
				t.Errorf("delete %q: %v", kv.Key, err)
			}
		}
	}
	if z.runs++; z.runs%100 == 0 {
		if _, err := z.Compact(ctx, revision); err != nil && !errors.Is(err, server.ErrCompacted) {
			t.Errorf("compact: %v", err)
		}
		var verdict string
		if err := z.reader.db.QueryRow("PRAGMA quick_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Errorf("the database is damaged: %s, %v", verdict, err)
		}
	}
}

// methods are all methods that the socket answers, except Watch.
var methods = []string{
	"KV/Range", "KV/Put", "KV/Txn", "KV/DeleteRange", "KV/Compact",
	"Lease/LeaseGrant", "Lease/LeaseRevoke", "Lease/LeaseTimeToLive", "Lease/LeaseLeases",
	"Maintenance/Status", "Maintenance/Alarm", "Maintenance/Defragment", "Maintenance/Hash", "Maintenance/HashKV", "Cluster/MemberList",
}

// message encodes a request of etcd's API.
func message(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// txn compares the revision of a key and changes others.
func txn(key string, revision int64, success, failure *pb.RequestOp) *pb.TxnRequest {
	r := &pb.TxnRequest{
		Compare: []*pb.Compare{{Target: pb.Compare_MOD, Key: []byte(key), TargetUnion: &pb.Compare_ModRevision{ModRevision: revision}}},
		Success: []*pb.RequestOp{success},
	}
	if failure != nil {
		r.Failure = []*pb.RequestOp{failure}
	}
	return r
}

func putOp(key, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}}
}

func rangeOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(key)}}}
}

func deleteOp(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}

// FuzzRequests sends two requests of arbitrary bytes over the socket.
func FuzzRequests(f *testing.F) {
	z := newFuzzed(f)
	const key = "/registry/pods/a"
	put := message(f, &pb.PutRequest{Key: []byte(key), Value: []byte("1"), Lease: 1<<63 - 1})
	for _, second := range [][]byte{
		message(f, &pb.RangeRequest{Key: []byte("/"), RangeEnd: []byte("0"), Limit: 1<<63 - 1, Revision: -1}),
		message(f, &pb.RangeRequest{Key: []byte(key), Limit: -1, KeysOnly: true}),
		message(f, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true, Revision: 2}),
	} {
		f.Add(uint(1), put, uint(0), second)
	}
	for _, r := range []*pb.TxnRequest{
		txn(key, 0, putOp(key, "2", 0), nil), txn(key, 0, putOp("/registry/b", "2", -5), rangeOp(key)), txn(key, 2, deleteOp(key), rangeOp(key)),
		{Compare: []*pb.Compare{{Target: pb.Compare_VERSION, Key: []byte("compact_rev_key")}}, Success: []*pb.RequestOp{putOp("compact_rev_key", "5", 0)}, Failure: []*pb.RequestOp{rangeOp("compact_rev_key")}},
		{Success: []*pb.RequestOp{rangeOp(key), deleteOp(key)}},
		{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{}}}}},
	} {
		f.Add(uint(1), put, uint(2), message(f, r))
	}
	f.Add(uint(4), message(f, &pb.CompactionRequest{Revision: 1 << 62, Physical: true}), uint(4), message(f, &pb.CompactionRequest{Revision: -1}))
	f.Add(uint(5), message(f, &pb.LeaseGrantRequest{TTL: -1}), uint(9), []byte{0xff})
	f.Fuzz(func(t *testing.T, one uint, first []byte, other uint, second []byte) {
		for i, request := range [][]byte{first, second} {
			method := methods[[]uint{one, other}[i]%uint(len(methods))]
			z.call(t, "/etcdserverpb."+method, request, nil)
		}
		z.check(t)
	})
}

// FuzzTransactions changes a few keys with valid requests and arbitrary
// conditions. The answers must match what is stored.
func FuzzTransactions(f *testing.F) {
	z := newFuzzed(f)
	f.Add([]byte("\x00\x00\x00\x01\x01\x02\x00\x03\x03\x01\x00\x00"), int64(60))
	f.Add([]byte("\x01\x00\x11\x01\x02\x00\x11\x00\x01\x00\x00\x00\x03\x01\x10\x01"), int64(10_000_000_000))
	f.Add([]byte("\x02\x01\x02\x03\x01\x06\x06\x01\x03\x06\x06\x01\x02\x06\x16\x01"), int64(-1))
	keys := []string{"/registry/a", "/registry/events/a", "/registry/leases/a", apiserverCompactKey, "/registry/a\x00", "\xff", compactKey}
	f.Fuzz(func(t *testing.T, steps []byte, lease int64) {
		if lease > 0 && lease < 3600 {
			lease += 3600 // none ends meanwhile
		}
		stored := map[string]string{}
		revisions := map[string]int64{}
		for ; len(steps) >= 4; steps = steps[4:] {
			key, other := keys[int(steps[1])%len(keys)], keys[int(steps[2])%len(keys)]
			value := string(steps[3:4])
			expected := revisions[key]
			if steps[2]&0x10 != 0 {
				expected += int64(int8(steps[3]))
			}
			var request *pb.TxnRequest
			switch steps[0] % 4 {
			case 0:
				request = txn(key, 0, putOp(other, value, lease), nil)
				expected = 0
			case 1:
				request = txn(key, expected, putOp(other, value, lease), rangeOp(key))
			case 2:
				request = txn(key, expected, deleteOp(other), rangeOp(key))
			case 3:
				request = &pb.TxnRequest{Success: []*pb.RequestOp{rangeOp(key), deleteOp(other)}}
			}
			encoded, err := proto.Marshal(request)
			if err != nil {
				t.Fatal(err)
			}
			var answer pb.TxnResponse
			done := z.call(t, "/etcdserverpb.KV/Txn", encoded, &answer)
			if done && (key != other || key == compactKey) {
				t.Errorf("%q is compared, and %q changed", key, other)
			}
			if !done || !answer.Succeeded {
				continue
			}
			if steps[0]%4 != 3 && expected != revisions[key] {
				t.Errorf("%q has revision %d, but a change from revision %d succeeded", key, revisions[key], expected)
			}
			switch steps[0] % 4 {
			case 0, 1:
				stored[key], revisions[key] = value, answer.Header.Revision
			default:
				delete(stored, key)
				delete(revisions, key)
			}
		}
		for _, key := range keys[:len(keys)-1] {
			_, kv, err := z.Get(t.Context(), key, 0, false)
			value, there := stored[key]
			if err != nil || (kv != nil) != there || there && (string(kv.Value) != value || kv.ModRevision != revisions[key]) {
				t.Errorf("%q is %s, want %q of revision %d: %v", key, keyText(kv), value, revisions[key], err)
			}
		}
		z.check(t)
	})
}

// FuzzWatch opens a watch with arbitrary bytes. If they are a valid request, it must
// be answered.
func FuzzWatch(f *testing.F) {
	z := newFuzzed(f)
	for _, create := range []*pb.WatchCreateRequest{
		{Key: []byte("/registry/a")}, {Key: []byte("/"), RangeEnd: []byte("0"), StartRevision: 1, PrevKv: true, ProgressNotify: true},
		{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: -1}, {StartRevision: 1<<63 - 1}, {Key: []byte("compact_rev_key"), WatchId: 7},
	} {
		f.Add(message(f, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}), []byte{})
	}
	f.Add(message(f, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: -1}}}),
		message(f, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := z.client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/etcdserverpb.Watch/Watch")
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range [][]byte{first, second} {
			var read pb.WatchRequest
			valid := proto.Unmarshal(request, &read) == nil
			if err := stream.SendMsg(&request); err != nil {
				break // the bytes before were not a request
			}
			if !valid || read.GetCreateRequest() == nil {
				continue
			}
			var response []byte
			err := stream.RecvMsg(&response)
			var answer pb.WatchResponse
			if ctx.Err() != nil || err == nil && proto.Unmarshal(response, &answer) != nil {
				t.Fatalf("the watch %v is answered %q: %v", &read, response, err)
			}
		}
		if _, err := z.Create(t.Context(), "/registry/a", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		cancel()
		z.check(t)
	})
}
