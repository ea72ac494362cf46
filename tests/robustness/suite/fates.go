package main

import (
	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// fates tell what has become of requests without an answer. Only one transaction can replace a key at a
// revision, and the history knows with what. Without fates the search for an order would try
// everything for each of these requests.
type fates struct {
	history *history
	// next has the indexes of the changes that replace a key at the number of an earlier one, or at 0 if there
	// is no key.
	next map[replaced][]int
	// claimed has the numbers of changes whose request has an answer.
	claimed map[int64]bool
	// first has, for each other change, the time of the first request that wanted to make it. It may have been a
	// later one too, but then the first one fits as well.
	first map[int64]int64
	// end is later than all requests.
	end int64
}

type replaced struct {
	key    string
	number int64
}

func (h *history) newFates(reports []report.ClientReport) *fates {
	f := &fates{history: h, next: map[replaced][]int{}, claimed: map[int64]bool{}, first: map[int64]int64{}}
	present := map[string]int64{}
	for i, c := range h.changes {
		at := replaced{c.key, present[c.key]}
		f.next[at] = append(f.next[at], i)
		present[c.key] = int64(i) + 2
		if c.deleted {
			delete(present, c.key)
		}
	}
	for _, r := range reports {
		for _, op := range r.KeyValue {
			f.end = max(f.end, op.Return+1)
			response := op.Output.(model.MaybeEtcdResponse)
			if request := op.Input.(model.EtcdRequest); request.Txn != nil && response.Txn != nil && !response.Txn.Failure {
				f.claimed[h.numbers[response.Revision]] = true
			}
		}
	}
	for _, r := range reports {
		for _, op := range r.KeyValue {
			if number, ok := f.wanted(h.operation(op)); ok && number > 0 {
				if first, ok := f.first[number]; !ok || op.Call < first {
					f.first[number] = op.Call
				}
			}
		}
	}
	return f
}

// wanted returns the number of the change that a translated request wanted to make, or 0 if there is no such
// change or its request had an answer. It returns false if the request had an answer, or is not about one
// revision of one key.
func (f *fates) wanted(op porcupine.Operation) (number int64, ok bool) {
	request, response := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
	if response.Error == "" || request.Txn == nil || len(request.Txn.Conditions) != 1 || len(request.Txn.OperationsOnSuccess) != 1 {
		return 0, false
	}
	condition, wanted := request.Txn.Conditions[0], request.Txn.OperationsOnSuccess[0]
	if condition.ExpectedVersion != 0 || !f.history.models(condition.Key) || condition.Key == compactKey {
		return 0, false
	}
	for _, i := range f.next[replaced{condition.Key, condition.ExpectedRevision}] {
		c, number := f.history.changes[i], int64(i)+2
		made := c.deleted && wanted.Type == model.DeleteOperation || !c.deleted && wanted.Type == model.PutOperation && c.value == wanted.Put.Value
		if made && !f.claimed[number] {
			return number, true
		}
	}
	return 0, true
}

// resolve returns a translated request. If it has no answer, but the history has the change that it
// wanted to make, it returns it with the revision of that change. If the history shows that the request
// has changed nothing, resolve returns false.
func (f *fates) resolve(op porcupine.Operation) (porcupine.Operation, bool) {
	number, ok := f.wanted(op)
	if !ok {
		return op, true
	}
	if number == 0 || f.first[number] != op.Call {
		return op, false
	}
	response := model.MaybeEtcdResponse{Persisted: true, PersistedRevision: number}
	// It may have happened long after its client gave up.
	op.Output, op.Metadata, op.Return = response, response, f.end
	return op, true
}
