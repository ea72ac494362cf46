package main

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// translate returns reports with numbers in the place of revisions, as if the datastore were an etcd
// with no other keys than those of the traffic.
func (h *history) translate(reports []report.ClientReport) []report.ClientReport {
	translated := make([]report.ClientReport, len(reports))
	fates := h.newFates(reports)
	for i, r := range reports {
		translated[i] = report.ClientReport{ClientID: r.ClientID}
		for _, op := range r.KeyValue {
			if request := op.Input.(model.EtcdRequest); h.leavesOut(request) {
				continue
			}
			if op, happened := fates.resolve(h.operation(op)); happened {
				translated[i].KeyValue = append(translated[i].KeyValue, op)
			}
		}
		for _, w := range r.Watch {
			translated[i].Watch = append(translated[i].Watch, h.watch(w))
		}
	}
	return translated
}

// leavesOut tells whether the model does not know what a request does.
func (h *history) leavesOut(request model.EtcdRequest) bool {
	if h.etcd {
		return false
	}
	return request.Type == model.Compact || request.Type == model.Defragment ||
		request.Txn != nil && len(request.Txn.Conditions) > 0 && request.Txn.Conditions[0].Key == compactKey
}

func (h *history) operation(op porcupine.Operation) porcupine.Operation {
	request, response := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
	if request.Range != nil {
		read := *request.Range
		read.Revision = h.at(read.Revision)
		request.Range = &read
	}
	if request.Compact != nil {
		request.Compact = &model.CompactRequest{Revision: h.at(request.Compact.Revision)}
	}
	if request.Txn != nil {
		txn := *request.Txn
		txn.Conditions = slices.Clone(txn.Conditions)
		for i := range txn.Conditions {
			txn.Conditions[i].ExpectedRevision = h.of(txn.Conditions[i].ExpectedRevision)
		}
		request.Txn = &txn
	}
	response.Revision = h.at(response.Revision)
	if response.Range != nil {
		read := h.read(*response.Range)
		response.Range = &read
	}
	if response.Txn != nil {
		txn := *response.Txn
		txn.Results = slices.Clone(txn.Results)
		for i := range txn.Results {
			txn.Results[i].RangeResponse = h.read(txn.Results[i].RangeResponse)
		}
		response.Txn = &txn
	}
	op.Input, op.Output, op.Metadata = request, response, response
	return op
}

func (h *history) read(response model.RangeResponse) model.RangeResponse {
	response.KVs = slices.Clone(response.KVs)
	for i := range response.KVs {
		response.KVs[i].ValueRevision = h.value(response.KVs[i].ValueRevision)
	}
	return response
}

// value translates a revision, and sets the version, because only etcd counts versions of keys.
func (h *history) value(v model.ValueRevision) model.ValueRevision {
	v.ModRevision = h.of(v.ModRevision)
	if index := v.ModRevision - 2; !h.etcd && index >= 0 && index < int64(len(h.versions)) {
		v.Version = h.versions[index]
	}
	return v
}

func (h *history) watch(w model.WatchOperation) model.WatchOperation {
	asked := w.Request
	w.Request.Revision = h.from(w.Request.Revision)
	w.Responses = slices.Clone(w.Responses)
	for i := range w.Responses {
		response := &w.Responses[i]
		response.Revision = h.at(response.Revision)
		var events []model.WatchEvent
		for _, e := range response.Events {
			if !h.models(e.Key) {
				if !e.Match(asked) {
					h.object(fmt.Errorf("a watch of %s got an event of %s", asked.Key, e.Key))
				}
				continue
			}
			if e.Revision <= h.base {
				continue
			}
			e.Revision = h.of(e.Revision)
			if e.PrevValue != nil {
				before := h.value(*e.PrevValue)
				e.PrevValue = &before
			}
			events = append(events, e)
		}
		response.Events = events
	}
	return w
}
