package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

const pod = "/registry/pods/default/a"

// recorded is a history in the making. Its requests do not overlap.
type recorded struct {
	time    int64
	clients []report.ClientReport
}

// request adds a request of a client of its own.
func (r *recorded) request(request model.EtcdRequest, response model.MaybeEtcdResponse) {
	r.time += 2
	client := len(r.clients) + 1
	r.clients = append(r.clients, report.ClientReport{ClientID: client, KeyValue: []porcupine.Operation{
		{ClientId: client, Input: request, Call: r.time - 1, Output: response, Return: r.time},
	}})
}

func (r *recorded) get(key string, revision int64, kvs ...model.KeyValue) {
	response := &model.RangeResponse{KVs: append([]model.KeyValue{}, kvs...), Count: int64(len(kvs))}
	r.request(model.EtcdRequest{Type: model.Range, Range: &model.RangeRequest{RangeOptions: model.RangeOptions{Start: key}}},
		model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{Range: response, Revision: revision}})
}

// put writes a key that had a revision. A put at revision 0 has failed.
func (r *recorded) put(key, value string, before, revision int64) {
	put := model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: key, Value: model.ToValueOrHash(value)}}
	request := model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{
		Conditions: []model.EtcdCondition{{Key: key, ExpectedRevision: before}}, OperationsOnSuccess: []model.EtcdOperation{put},
		OperationsOnFailure: []model.EtcdOperation{},
	}}
	if revision == 0 {
		r.request(request, model.MaybeEtcdResponse{Error: "no answer"})
		return
	}
	r.request(request, model.MaybeEtcdResponse{EtcdResponse: model.EtcdResponse{
		Txn: &model.TxnResponse{Results: []model.EtcdOperationResult{{}}}, Revision: revision,
	}})
}

// watch adds a watch of all keys that has seen changes.
func (r *recorded) watch(from int64, events ...model.WatchEvent) {
	r.clients = append(r.clients, report.ClientReport{ClientID: len(r.clients) + 1, Watch: []model.WatchOperation{{
		Request:   model.WatchRequest{Revision: from, WithPrefix: true},
		Responses: []model.WatchResponse{{Events: events, Revision: events[len(events)-1].Revision}},
	}}})
}

func event(key, value string, revision int64, created bool) model.WatchEvent {
	return model.WatchEvent{PersistedEvent: model.PersistedEvent{
		Event: model.Event{Type: model.PutOperation, Key: key, Value: model.ToValueOrHash(value)}, Revision: revision, IsCreate: created,
	}}
}

func kv(value string, revision, version int64) model.KeyValue {
	return model.KeyValue{Key: pod, ValueRevision: model.ValueRevision{Value: model.ToValueOrHash(value), ModRevision: revision, Version: version}}
}

// TestJudge judges histories of a datastore whose revisions begin late and have gaps, and that counts no versions.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		history func(*recorded)
		rows    string
		want    string
	}{
		"right": {history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.get(pod, 17, kv("1", 15, 0)) // another key has changed
			r.put(pod, "2", 15, 20)
			r.get(pod, 20, kv("2", 20, 0))
			r.watch(11, event(pod, "1", 15, true), event("/registry/health", "x", 17, true), event(pod, "2", 20, false))
		}},
		"a lost write": {want: "linearization", history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.get(pod, 17)
			r.watch(11, event(pod, "1", 15, true))
		}},
		"a stale read": {want: "before, there was", history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.put(pod, "2", 15, 16)
			r.get(pod, 15, kv("1", 15, 0))
			r.watch(11, event(pod, "1", 15, true), event(pod, "2", 16, false))
		}},
		"a revision that is used twice": {want: "revision 15 is", history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.watch(11, event(pod, "2", 15, true))
		}},
		"a missing event": {want: "Reliable", history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.put(pod, "2", 15, 16)
			r.put(pod, "3", 16, 17)
			r.watch(11, event(pod, "1", 15, true), event(pod, "3", 17, false))
		}},
		"a request without an answer that has happened": {history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.put(pod, "2", 15, 0)
			r.get(pod, 16, kv("2", 16, 0))
			r.watch(11, event(pod, "1", 15, true), event(pod, "2", 16, false))
		}},
		"a request without an answer that has not happened": {history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.put(pod, "2", 15, 0)
			r.get(pod, 15, kv("1", 15, 0))
			r.watch(11, event(pod, "1", 15, true))
		}},
		"two requests without an answer for one change": {history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.put(pod, "2", 15, 0)
			r.get(pod, 16, kv("2", 16, 0))
			late := r.clients[2].KeyValue[0]
			late.Call, late.Return, late.ClientId = 101, 102, 50
			r.clients = append([]report.ClientReport{{ClientID: 50, KeyValue: []porcupine.Operation{late}}}, r.clients...)
			r.watch(11, event(pod, "1", 15, true), event(pod, "2", 16, false))
		}},
		"nobody watched": {want: "nobody watched revisions 11 to 14", history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.watch(15, event(pod, "1", 15, true))
		}},
		"nobody watched, but the rows are there": {rows: `{"from": 5, "to": 14}`, history: func(r *recorded) {
			r.put(pod, "1", 0, 15)
			r.watch(15, event(pod, "1", 15, true))
		}},
		"a row that nobody has seen": {rows: `{"revision": 15, "key": "` + pod + `", "value": "1"}{"from": 5, "to": 19}`, history: func(r *recorded) {
			r.put(pod, "1", 0, 0)
			r.put(pod, "2", 15, 20)
			r.watch(20, event(pod, "2", 20, false))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorded{}
			r.get(lastKey, 10)
			c.history(r)
			file := filepath.Join(t.TempDir(), "rows")
			if err := os.WriteFile(file, []byte(c.rows), 0o600); err != nil {
				t.Fatal(err)
			}
			rows, err := readRows(file)
			if err != nil {
				t.Fatal(err)
			}
			v := judge(r.clients, rows, false, "")
			if said := v.Violation + v.Inconclusive; c.want == "" && said != "" || !strings.Contains(said, c.want) {
				t.Errorf("the judge says %q, want %q", said, c.want)
			}
		})
	}
}
