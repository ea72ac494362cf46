package main

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

// mostReasons limits how much explain says.
const mostReasons = 5

// explain says why the requests of a translated history have no order. Every answer has a revision. So
// an answer is wrong if the model gives another one at this revision, or if an earlier request was
// answered at a later revision.
func (h *history) explain(reports []report.ClientReport) (reasons []string) {
	replay := model.NewReplay(h.requests())
	describe := model.NonDeterministicModel(nil).DescribeOperation
	show := func(op porcupine.Operation) string {
		return fmt.Sprintf("client %d from %d to %d µs: %s", op.ClientId, op.Call/1000, op.Return/1000, describe(op.Input, op.Output))
	}
	var answered []porcupine.Operation
	for _, r := range reports {
		for _, op := range r.KeyValue {
			request, response := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
			if response.Error != "" || response.Revision <= 0 {
				continue
			}
			answered = append(answered, op)
			at := response.Revision
			if request.Txn != nil && !request.IsRead() && !response.Txn.Failure && h.wrote(response) {
				at-- // the request itself has made this revision
			}
			state, err := replay.StateForRevision(at)
			if err != nil {
				reasons = append(reasons, fmt.Sprintf("%s\n\t\tbut there is no such revision", show(op)))
				continue
			}
			if _, want := state.Step(request); !model.Match(want, response) {
				reasons = append(reasons, fmt.Sprintf("%s\n\t\tbut the model says %s", show(op), describe(request, want)))
			}
		}
	}
	slices.SortFunc(answered, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	returned := slices.Clone(answered)
	slices.SortFunc(returned, func(a, b porcupine.Operation) int { return int(a.Return - b.Return) })
	var latest *porcupine.Operation
	revision := func(op porcupine.Operation) int64 { return op.Output.(model.MaybeEtcdResponse).Revision }
	for _, op := range answered {
		for len(returned) > 0 && returned[0].Return < op.Call {
			if latest == nil || revision(returned[0]) > revision(*latest) {
				latest = &returned[0]
			}
			returned = returned[1:]
		}
		if latest != nil && revision(op) < revision(*latest) {
			reasons = append(reasons, fmt.Sprintf("%s\n\t\tbut before, there was %s", show(op), show(*latest)))
		}
	}
	more := len(reasons) - mostReasons
	if more > 0 {
		reasons = append(reasons[:mostReasons], fmt.Sprintf("and %d more", more))
	}
	return reasons
}

// wrote tells whether a successful transaction has changed something.
func (h *history) wrote(response model.MaybeEtcdResponse) bool {
	return !slices.ContainsFunc(response.Txn.Results, func(r model.EtcdOperationResult) bool { return r.KVs != nil })
}
