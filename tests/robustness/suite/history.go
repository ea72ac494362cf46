package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// compactKey is the key by which API servers agree on compactions.
const compactKey = "compact_rev_key"

// change is one change of one key.
type change struct {
	revision int64
	key      string
	// value is empty if the change is a deletion.
	value   model.ValueOrHash
	deleted bool
}

func (c change) String() string {
	if c.deleted {
		return "the deletion of " + c.key
	}
	return fmt.Sprintf("%s = %v", c.key, c.value)
}

// history has every change of the traffic's keys. etcd's model counts revisions from 1, without a
// gap, and knows every change. kedge's datastores begin later, skip revisions, and have changes of
// other keys. So a history numbers the changes from 2, and translates revisions to these numbers.
type history struct {
	// etcd is true if the datastore is etcd. Of the others the model leaves out compactions, because
	// they keep some revisions for longer, and compactKey, because SQLite may lose its last changes.
	etcd bool
	// base is the revision at which the traffic began, with none of its keys.
	base    int64
	changes []change
	// versions are those of the keys after each of the changes.
	versions []int64
	// numbers has the number of each revision at which there is a change.
	numbers map[int64]int64
	// faults are the first contradictions in what clients have seen.
	faults []error
}

// models tells whether a key is of the traffic.
func (h *history) models(key string) bool {
	return key == lastKey || strings.HasPrefix(key, "/registry/pods/") || h.etcd && key == compactKey
}

// newHistory gathers the changes: those that the datastore has stored, and those that a client has
// seen, by a watch, by a read, or because its request succeeded. A change that nobody has seen, and
// that is not stored, has not happened.
func newHistory(reports []report.ClientReport, stored []change, etcd bool) *history {
	h := &history{etcd: etcd, base: firstRevision(reports), numbers: map[int64]int64{}}
	found := map[int64]change{}
	note := func(source string, c change) {
		if !h.models(c.key) || c.revision <= h.base {
			return
		}
		if before, ok := found[c.revision]; ok && before != c {
			h.object(fmt.Errorf("revision %d is %v, and %v for %s", c.revision, before, c, source))
		}
		found[c.revision] = c
	}
	for _, c := range stored {
		note("the datastore", c)
	}
	for _, r := range reports {
		for _, op := range r.KeyValue {
			seenByRequest(op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse), note)
		}
		for _, w := range r.Watch {
			for _, response := range w.Responses {
				for _, e := range response.Events {
					c := change{revision: e.Revision, key: e.Key, value: e.Value, deleted: e.Type == model.DeleteOperation}
					if c.deleted {
						c.value = model.ValueOrHash{}
					}
					note("a watch", c)
				}
			}
		}
	}
	for _, c := range found {
		h.changes = append(h.changes, c)
	}
	slices.SortFunc(h.changes, func(a, b change) int { return int(a.revision - b.revision) })
	versions := map[string]int64{}
	for i, c := range h.changes {
		versions[c.key]++
		if c.deleted {
			delete(versions, c.key)
		}
		h.versions = append(h.versions, versions[c.key])
		h.numbers[c.revision] = int64(i) + 2
	}
	return h
}

// firstRevision returns the revision of the first answer.
func firstRevision(reports []report.ClientReport) int64 {
	for _, r := range reports {
		for _, op := range r.KeyValue {
			if response := op.Output.(model.MaybeEtcdResponse); response.Error == "" {
				return response.Revision
			}
		}
	}
	return 0
}

// object notes a contradiction.
func (h *history) object(fault error) {
	if len(h.faults) < mostReasons {
		h.faults = append(h.faults, fault)
	}
}

// seenByRequest notes the changes that a request has made or found.
func seenByRequest(request model.EtcdRequest, response model.MaybeEtcdResponse, note func(string, change)) {
	if response.Error != "" {
		return
	}
	read := func(kvs []model.KeyValue, complete bool) {
		for _, kv := range kvs {
			if complete {
				note("a read", change{revision: kv.ModRevision, key: kv.Key, value: kv.Value})
			}
		}
	}
	if response.Range != nil {
		read(response.Range.KVs, !request.Range.KeysOnly)
	}
	if request.Txn == nil || response.Txn == nil {
		return
	}
	ops := request.Txn.OperationsOnSuccess
	if response.Txn.Failure {
		ops = request.Txn.OperationsOnFailure
	}
	for i, op := range ops {
		if i >= len(response.Txn.Results) {
			return
		}
		switch result := response.Txn.Results[i]; op.Type {
		case model.RangeOperation:
			read(result.KVs, true)
		case model.PutOperation:
			note("the client that wrote it", change{revision: response.Revision, key: op.Put.Key, value: op.Put.Value})
		case model.DeleteOperation:
			if result.Deleted > 0 {
				note("the client that deleted it", change{revision: response.Revision, key: op.Delete.Key, deleted: true})
			}
		}
	}
}

// at returns the number of the last change up to a revision, or 1 if there is none.
func (h *history) at(revision int64) int64 {
	if revision <= 0 {
		return revision
	}
	after, exact := slices.BinarySearchFunc(h.changes, revision, func(c change, revision int64) int { return int(c.revision - revision) })
	if exact {
		after++
	}
	return int64(after) + 1
}

// from returns the number of the first change from a revision on.
func (h *history) from(revision int64) int64 {
	if revision <= 0 {
		return revision
	}
	return h.at(revision-1) + 1
}

// of returns the number of the change at a revision. No change has the number of an unknown revision.
func (h *history) of(revision int64) int64 {
	if number, ok := h.numbers[revision]; ok || revision <= 0 {
		return number
	}
	return revision + int64(len(h.changes)) + 2
}

// requests returns requests that make all changes in their order.
func (h *history) requests() []model.EtcdRequest {
	requests := make([]model.EtcdRequest, len(h.changes))
	for i, c := range h.changes {
		op := model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: c.key, Value: c.value}}
		if c.deleted {
			op = model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: c.key}}
		}
		requests[i] = model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: []model.EtcdOperation{op}}}
	}
	return requests
}

// stored is what the tests have read from the storage of a datastore that did not run.
type stored struct {
	changes []change
	// spans are the revisions of which all changes are known.
	spans []span
}

// span has the revisions from one to another.
type span struct{ from, to int64 }

// readRows reads a file with a row for each change, {"revision": 1, "key": "…", "value": "…", "deleted":
// false}, and for each span of revisions of which it has all changes, {"from": 1, "to": 2}. A file
// without a name is empty.
func readRows(file string) (s stored, err error) {
	if file == "" {
		return s, nil
	}
	opened, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read rows: %w", err)
	}
	defer opened.Close()
	decoder := json.NewDecoder(bufio.NewReader(opened))
	for decoder.More() {
		var row struct {
			Revision, From, To int64
			Key, Value         string
			Deleted            bool
		}
		if err := decoder.Decode(&row); err != nil {
			return s, fmt.Errorf("read rows of %s: %w", file, err)
		}
		if row.To > 0 {
			s.spans = append(s.spans, span{row.From, row.To})
			continue
		}
		c := change{revision: row.Revision, key: row.Key, deleted: row.Deleted}
		if !row.Deleted {
			c.value = model.ToValueOrHash(row.Value)
		}
		s.changes = append(s.changes, c)
	}
	return s, nil
}

// gap returns revisions of which nobody knows the changes: no client watched all keys then, and no span has them. If a
// client is cut off for long, the changes meanwhile may be compacted before it comes back.
func (h *history) gap(reports []report.ClientReport, spans []span) (missing span, found bool) {
	spans = slices.Clone(spans)
	for _, r := range reports {
		for _, w := range r.Watch {
			if w.Request.Key != "" || w.Request.Revision <= 0 {
				continue
			}
			last := int64(0)
			for _, response := range w.Responses {
				if response.IsProgressNotify {
					last = response.Revision
				}
				for _, e := range response.Events {
					last = e.Revision
				}
			}
			spans = append(spans, span{w.Request.Revision, last})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	known := h.base
	for _, s := range spans {
		if s.to > known {
			if s.from > known+1 {
				return span{known + 1, s.from - 1}, true
			}
			known = s.to
		}
	}
	return span{}, false
}
