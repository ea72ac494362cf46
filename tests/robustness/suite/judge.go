package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
)

// linearizationTimeout limits the search for an order of all requests.
const linearizationTimeout = 2 * time.Minute

// Counts says how much a history has.
type Counts struct {
	Requests, Failed, Writes, Lists int
	// Changes are those that the datastore has made.
	Changes                   int
	Watches, Events, Progress int
}

// judge returns what etcd's validators say of a history. If they object, it leaves the history in a
// folder.
func judge(reports []report.ClientReport, stored stored, etcd bool, folder string) Verdict {
	h := newHistory(reports, stored.changes, etcd)
	translated := h.translate(reports)
	verdict := Verdict{Counts: count(reports, h)}
	logger, err := zap.Config{
		Level: zap.NewAtomicLevelAt(zap.ErrorLevel), Encoding: "console", OutputPaths: []string{"stderr"},
		ErrorOutputPaths: []string{"stderr"}, EncoderConfig: zap.NewDevelopmentEncoderConfig(),
	}.Build()
	if err != nil {
		verdict.Inconclusive = err.Error()
		return verdict
	}
	missing, incomplete := h.gap(reports, stored.spans)
	if err := errors.Join(h.faults...); err != nil {
		verdict.Violation = "history: " + err.Error()
	} else if incomplete {
		verdict.Inconclusive = fmt.Sprintf("nobody watched revisions %d to %d before they were compacted", missing.from, missing.to)
	} else {
		verdict.Violation, verdict.Inconclusive = h.validate(logger, translated, folder)
	}
	if verdict.Violation != "" && folder != "" {
		if err := leave(logger, folder, reports, translated); err != nil {
			verdict.Violation += fmt.Sprintf(" (and the history could not be left: %v)", err)
		}
	}
	return verdict
}

// validate runs etcd's validators. They panic about events that they do not expect.
func (h *history) validate(logger *zap.Logger, reports []report.ClientReport, folder string) (violation, inconclusive string) {
	defer func() {
		if reason := recover(); reason != nil {
			violation = fmt.Sprint("a validator gave up: ", reason)
		}
	}()
	result := validate.ValidateAndReturnVisualize(logger, validate.Config{ExpectRevisionUnique: true}, reports, h.requests(), linearizationTimeout)
	switch result.Linearization.Status {
	case validate.Timeout, validate.DeadlineExceeded:
		if reasons := h.explain(reports); len(reasons) > 0 {
			return "linearization: " + strings.Join(reasons, "\n\t"), ""
		}
		return "", "linearization: " + result.Linearization.String()
	case validate.Failure:
		if folder != "" && os.MkdirAll(folder, 0o755) == nil {
			// The violation counts, also without its picture.
			_ = porcupine.VisualizePath(result.Linearization.Model, result.Linearization.Info, filepath.Join(folder, "linearization.html"))
		}
		return "linearization: the requests have no order\n\t" + strings.Join(h.explain(reports), "\n\t"), ""
	}
	if err := result.Assumptions.Error(); err != nil {
		return "", "assumptions: " + err.Error()
	}
	if err := result.Error(); err != nil {
		return err.Error(), ""
	}
	return "", ""
}

// leave writes a history: as it was recorded, and as it was judged.
func leave(logger *zap.Logger, folder string, recorded, judged []report.ClientReport) error {
	for name, reports := range map[string][]report.ClientReport{"recorded": recorded, "judged": judged} {
		r, err := report.NewTestReport(logger, filepath.Join(folder, name), nil, &report.TrafficDetail{ExpectUniqueRevision: true})
		if err != nil {
			return err
		}
		r.SetClientReports(reports)
		if err := r.SaveEtcdData(); err != nil {
			return err
		}
	}
	return nil
}

func count(reports []report.ClientReport, h *history) Counts {
	c := Counts{Changes: len(h.changes)}
	for _, r := range reports {
		for _, op := range r.KeyValue {
			request, response := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
			c.Requests++
			switch {
			case response.Error != "":
				c.Failed++
			case request.Type == model.Txn:
				c.Writes++
			case request.Type == model.Range && request.Range.End != "":
				c.Lists++
			}
		}
		for _, w := range r.Watch {
			c.Watches++
			for _, response := range w.Responses {
				c.Events += len(response.Events)
				if response.IsProgressNotify {
					c.Progress++
				}
			}
		}
	}
	return c
}
