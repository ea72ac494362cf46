package lists

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// store has n keys at revision 7, and other keys at all later revisions.
func store(n int, fails error) List {
	calls := 0
	return func(_ context.Context, key, end string, limit, revision int64, _ bool) (int64, []*server.KeyValue, error) {
		if calls++; calls > 1 && (fails != nil || revision != 7) {
			return 0, nil, errors.Join(fails, fmt.Errorf("revision %d is listed", revision))
		}
		var found []*server.KeyValue
		for i := range n {
			name := fmt.Sprintf("/%05d", i)
			if name >= key && (end == "\x00" || name < end) && int64(len(found)) < limit {
				found = append(found, &server.KeyValue{Key: name, ModRevision: 7})
			}
		}
		return 7 + int64(calls) - 1, found, nil
	}
}

func TestStream(t *testing.T) {
	for name, test := range map[string]struct {
		keys     int
		end      string
		limit    int64
		revision int64
		want     int
	}{
		"none":                  {0, "0", 0, 0, 0},
		"less than a page":      {3, "0", 0, 0, 3},
		"a page":                {page, "0", 0, 0, page},
		"several pages":         {2*page + 1, "0", 0, 0, 2*page + 1},
		"an old revision":       {2 * page, "0", 0, 7, 2 * page},
		"all keys":              {2 * page, "", 0, 0, 2 * page},
		"a limit":               {2 * page, "0", 5, 0, 5},
		"a limit of some pages": {3 * page, "0", page + 5, 0, page + 5},
	} {
		key := "/"
		if test.end == "" {
			key = ""
		}
		result := Stream(t.Context(), store(test.keys, nil), key, test.end, test.limit, test.revision, false)
		var names []string
		for kv := range result.KVc {
			names = append(names, kv.Key)
		}
		if err := <-result.Errorc; err != nil || len(names) != test.want || !slices.IsSorted(names) || len(slices.Compact(names)) != test.want || result.CurrentRevision != 7 {
			t.Errorf("%s: got %d keys at %d, %v, want %d", name, len(names), result.CurrentRevision, err, test.want)
		}
	}
}

// A list that breaks off does not pass for a complete one.
func TestStreamFails(t *testing.T) {
	result := Stream(t.Context(), store(2*page, server.ErrCompacted), "/", "0", 0, 0, false)
	n := 0
	for range result.KVc {
		n++
	}
	if err := <-result.Errorc; n != page || !errors.Is(err, server.ErrCompacted) {
		t.Errorf("got %d keys and %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result = Stream(ctx, store(2*page, nil), "/", "0", 0, 0, false)
	cancel()
	for range result.KVc {
	}
	if err := <-result.Errorc; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after the caller has gone", err)
	}
}

func TestCall(t *testing.T) {
	failure := errors.New("no more")
	serve := func(err error) func(pb.KV_RangeStreamServer) error {
		return func(stream pb.KV_RangeStreamServer) error {
			for i := range int64(3) {
				if err := stream.Send(&pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Count: i}}); err != nil {
					return err
				}
			}
			return err
		}
	}
	for _, want := range []error{nil, failure} {
		c := Call(t.Context(), t.Context(), serve(want))
		got := ""
		for {
			part, err := c.Recv()
			if err != nil {
				if want == nil && err != io.EOF || want != nil && err != want {
					t.Errorf("ends with %v, want %v", err, want)
				}
				break
			}
			got += fmt.Sprint(part.RangeResponse.Count, " ")
		}
		if strings.TrimSpace(got) != "0 1 2" {
			t.Errorf("got parts %s", got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := Call(t.Context(), ctx, serve(nil))
	cancel()
	for range 4 {
		if _, err := c.Recv(); err != nil && !errors.Is(err, context.Canceled) && err != io.EOF {
			t.Errorf("got %v after the end of the client", err)
		}
	}
}
