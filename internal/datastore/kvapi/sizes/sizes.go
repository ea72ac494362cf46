// Package sizes limits how large an object can be. All datastores that kedge runs
// use it, so that an object that one of them has accepted can be changed in each
// other. It also finds the objects that are too large for a datastore that is to
// take them over.
package sizes

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limit is the size in bytes of the largest write: an object, and about 100 bytes
// besides its key. etcd's own client sends no larger request
// (go.etcd.io/etcd/client/v3/options.go), and neither kine nor k3s has ever accepted
// one.
//
//upstream:relies-on go.etcd.io/etcd/client/v3/options.go defaultMaxCallSendMsgSize
const Limit = 2 << 20

// Check returns an error if a write of an object needs more than limit bytes.
func Check(write proto.Message, key []byte, limit int) error {
	if size := proto.Size(write); size > limit {
		return &tooLarge{key: string(key), size: size, limit: limit}
	}
	return nil
}

// CheckTxn is Check for a transaction about one key.
func CheckTxn(r *etcdserverpb.TxnRequest, limit int) error {
	var key []byte
	if len(r.Compare) > 0 {
		key = r.Compare[0].Key
	}
	return Check(r, key, limit)
}

// tooLarge is the error of a write that is too large. Clients of the API get it with
// the code 413, and clients of etcd's API as InvalidArgument, as from etcd.
type tooLarge struct {
	key         string
	size, limit int
}

func (e *tooLarge) Error() string {
	return fmt.Sprintf("%s needs %d bytes in the datastore, which takes at most %d for an object: "+
		"divide it into several objects, or keep its contents in a volume", e.key, e.size, e.limit)
}

// GRPCStatus returns the status that gRPC sends to the client.
func (e *tooLarge) GRPCStatus() *status.Status { return status.New(codes.InvalidArgument, e.Error()) }

// Status returns what the API server answers.
func (e *tooLarge) Status() metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge,
		Reason: metav1.StatusReasonRequestEntityTooLarge, Message: e.Error(),
	}
}

// Objects notes which of a datastore's present objects are too large for another
// datastore.
type Objects struct {
	limit int
	found map[string]int
}

// NewObjects returns an Objects for a datastore with a limit in bytes.
func NewObjects(limit int) *Objects { return &Objects{limit: limit, found: map[string]int{}} }

// Note takes a change into account. The changes of a key must come in their order.
func (o *Objects) Note(event *mvccpb.Event) {
	key := string(event.Kv.Key)
	if size := written(event.Kv); event.Type == mvccpb.Event_PUT && size > o.limit {
		o.found[key] = size
		return
	}
	delete(o.found, key)
}

// written returns the size in bytes of a change of an object that leaves it as large
// as it is.
func written(kv *mvccpb.KeyValue) int {
	if kv.Value == nil {
		return 0
	}
	return proto.Size(Change(kv.Key, kv.Value, kv.ModRevision, kv.Lease))
}

// named limits how many objects an error names.
const named = 20

// Err returns an error that names the objects that are too large, or nil if there are
// none. advice says what the user can do. In advice, %d stands for a limit that all
// objects keep.
func (o *Objects) Err(advice string) error {
	if len(o.found) == 0 {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(o.found), func(a, b string) int {
		return cmp.Or(cmp.Compare(o.found[b], o.found[a]), strings.Compare(a, b))
	})
	var list []string
	for _, key := range keys[:min(len(keys), named)] {
		list = append(list, fmt.Sprintf("%s (%d bytes)", key, o.found[key]))
	}
	if more := len(keys) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("the datastore takes at most %d bytes for an object, and these objects are larger: %s. "+
		"They could no longer be changed. "+strings.ReplaceAll(advice, "%d", "%[3]d"), o.limit, strings.Join(list, ", "), o.found[keys[0]])
}
