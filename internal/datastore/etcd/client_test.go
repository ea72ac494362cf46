package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// lossy is a pb.KVClient that loses transactions, or their answers.
type lossy struct {
	pb.KVClient
	// lose, loseAnswer, drop and late concern the first transaction.
	lose, loseAnswer, drop, late bool
	// changed is closed when a transaction is lost.
	changed chan struct{}

	revision int64
	kv       *mvccpb.KeyValue
}

func (l *lossy) Range(context.Context, *pb.RangeRequest, ...grpc.CallOption) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: l.revision}, Kvs: []*mvccpb.KeyValue{l.kv}}, nil
}

func (l *lossy) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	lose, loseAnswer, drop, late := l.lose, l.loseAnswer, l.drop, l.late
	l.lose, l.loseAnswer, l.drop, l.late = false, false, false, false
	answer := &pb.TxnResponse{Header: &pb.ResponseHeader{}}
	switch {
	case drop:
		return nil, status.Error(codes.Unknown, raft.ErrProposalDropped.Error())
	case late:
		return nil, context.DeadlineExceeded
	case lose:
	case l.kv == nil || l.kv.ModRevision == r.Compare[0].GetModRevision():
		l.revision++
		put := r.Success[0].GetRequestPut()
		l.kv = &mvccpb.KeyValue{Key: put.Key, Value: put.Value, ModRevision: l.revision}
		answer.Succeeded = true
	}
	answer.Header.Revision = l.revision
	if lose || loseAnswer {
		close(l.changed)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, nil
}

// TestLostWrites wants writes that are lost with a leader to be made exactly
// once.
func TestLostWrites(t *testing.T) {
	for name, test := range map[string]struct {
		fault *lossy
		want  bool
	}{
		"none":                      {&lossy{}, true},
		"lost":                      {&lossy{lose: true}, true},
		"its answer is lost":        {&lossy{loseAnswer: true}, true},
		"refused by who hands over": {&lossy{drop: true}, true},
		"found no leader in time":   {&lossy{late: true}, true},
		"another's is there":        {&lossy{kv: &mvccpb.KeyValue{Value: []byte("theirs"), ModRevision: 1}, revision: 1}, false},
		"lost, another's is there":  {&lossy{lose: true, kv: &mvccpb.KeyValue{Value: []byte("theirs"), ModRevision: 1}, revision: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			test.fault.changed = make(chan struct{})
			before := test.fault.revision
			client := clientv3.NewKVFromKVClient(patient{
				meter:         measure.NewMeter(logrus.WithField("component", "datastore"), ""),
				limit:         1000,
				KVClient:      test.fault,
				leaderChanged: func() <-chan struct{} { return test.fault.changed },
				quorum:        func() error { return nil },
			}, nil)
			answer, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision("key"), "=", 0)).Then(clientv3.OpPut("key", "mine")).Commit()
			if err != nil || answer.Succeeded != test.want {
				t.Fatalf("got %+v, %v", answer, err)
			}
			if made := test.fault.revision - before; test.want && (made != 1 || answer.Header.Revision != test.fault.kv.ModRevision) || !test.want && made != 0 {
				t.Errorf("the write was made %d times and answered with revision %d, want it made once (%t) with its revision", made, answer.Header.Revision, test.want)
			}
		})
	}
}

// TestQuorumLost wants requests without a quorum to fail at once, and to say why.
func TestQuorumLost(t *testing.T) {
	first := newHost(t, 51, nil)
	first.start(nil)
	second := newHost(t, 52, first)
	second.start(first)
	first.put("before")
	if err := second.end(); err != nil {
		t.Fatal(err)
	}
	client := first.member.Endpoint().NewClient()
	defer client.Close()
	eventually(t, "what the user is told", func() error {
		_, err := client.OptimisticPut(t.Context(), "key", nil, 0, kubernetes.PutOptions{})
		if err == nil {
			t.Fatal("a write succeeded")
		}
		if !strings.Contains(err.Error(), "of 2 members with a vote, 1 answer and 2 are needed. No answer from node-52") {
			return err
		}
		return nil
	})
	if _, err := client.KV.Get(t.Context(), "before"); err == nil {
		t.Error("a read succeeded")
	}
	if _, err := client.KV.Get(t.Context(), "before", clientv3.WithSerializable()); err != nil {
		t.Errorf("a read that may be old failed: %v", err)
	}
	if _, err := first.member.Admit(t.Context(), join.MemberRequest{Name: "node-53-0badcafe", PeerURL: "https://127.77.0.53:2380"}); !errors.Is(err, join.ErrNotNow) {
		t.Errorf("admit another member: got error %v, want %v", err, join.ErrNotNow)
	}
	second.start(nil)
	eventually(t, "writes to succeed", func() error {
		_, err := client.OptimisticPut(t.Context(), "key", nil, 0, kubernetes.PutOptions{})
		return err
	})
}
