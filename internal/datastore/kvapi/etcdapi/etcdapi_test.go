package etcdapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/direct"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// busy is a backend that has no time for anything.
type busy struct{ direct.Backend }

func (busy) Create(context.Context, string, []byte, int64) (int64, error) {
	return 0, fmt.Errorf("begin: %w", context.DeadlineExceeded)
}

// TestOverdue checks that a request that is out of time leaves no value in the log, and what its client gets.
func TestOverdue(t *testing.T) {
	var out bytes.Buffer
	logrus.SetOutput(&out)
	defer logrus.SetOutput(os.Stderr)
	meter := measure.NewMeter(logrus.WithField("component", "test"), "")
	bridge := server.New(&discreet{busy{}, meter}, "unix", progressInterval, emulatedETCDVersion)
	_, err := bridge.Txn(t.Context(), &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: []byte("/registry/secrets/a"), Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{}}},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("/registry/secrets/a"), Value: []byte("hunter2")}}}},
	})
	if status.Code(err) != codes.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) || !apierrors.IsTimeout(err) {
		t.Errorf("got %v", err)
	}
	if out.Len() > 0 {
		t.Errorf("the log has %s", &out)
	}
}
