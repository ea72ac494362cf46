// Package why finds out why an object of a cluster does not work. It follows the object along the way that it takes through Kubernetes, and says at
// the first step that fails what the cause is and what to do. It asks the API as the user who wants to know, so it tells nobody more than the user may
// read.
//
// A rule is one function that finds one cause. The rules of a step stand in one list, in the order in which they are tried. To add a rule, write the
// function, put it into the list, and put a file into testdata that has the objects and the sentence that the rule says of them. Many rules know
// messages of Kubernetes and of containerd: tests/e2e/why makes the mistakes on a real cluster, and fails if a message has changed.
package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// Object is what a user asks about.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns the object as kubectl's users write it.
func (o Object) String() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// State tells how far a step is.
type State string

const (
	// Passed is a step that is done, or holds.
	Passed State = "passed"
	// Failed is the step at which the object stands, with the cause.
	Failed State = "failed"
	// Waiting is a step that is under way, and nothing is known to be wrong with it.
	Waiting State = "waiting"
	// Warning is a step that is done and has something that will be a problem, or that has been one.
	Warning State = "warning"
)

// Step is one step of the way that an object takes.
type Step struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Says is one sentence, or a few. The first one names the cause.
	Says string `json:"says"`
	// Do is what to do about it. It is empty if there is nothing to do.
	Do string `json:"do,omitempty"`
	// Rule is the name of the rule that fits.
	Rule string `json:"rule,omitempty"`
}

// Report is the way of an object, up to where it stands.
type Report struct {
	Object Object `json:"object"`
	Steps  []Step `json:"steps"`
	// Unread names what the user may not read, and what is not known therefore.
	Unread []string `json:"unread,omitempty"`
	// Self is the object itself. Only Causes sets it.
	Self runtime.Object `json:"-"`
}

// Well tells whether nothing is wrong with the object.
func (r *Report) Well() bool { return r.Cause() == nil }

// Cause returns the step that failed, or nil.
func (r *Report) Cause() *Step {
	for i := range r.Steps {
		if r.Steps[i].State == Failed {
			return &r.Steps[i]
		}
	}
	return nil
}

// finding is what a rule has found.
type finding struct {
	says, do string
	// rule is set by the walk, unless the finding is that of another object.
	rule string
	// mild is true if the object works nevertheless.
	mild bool
}

// found returns a finding whose sentence has these values.
func found(do, says string, values ...any) *finding {
	return &finding{says: fmt.Sprintf(says, values...), do: do}
}

// rule finds one cause.
type rule[T any] struct {
	name string
	find func(*world, T) *finding
}

// stage is a step of the way of all objects of a kind.
type stage[T any] struct {
	name  string
	rules []rule[T]
	// passed says what holds if the object has passed the step. It returns "" as long as the object has not.
	passed func(*world, T) string
	// waiting says what the object waits for otherwise.
	waiting string
}

// walk follows an object along the way of its kind.
func walk[T any](w *world, object T, way []stage[T]) (steps []Step) {
	for _, stage := range way {
		warned := false
		for _, rule := range stage.rules {
			f := rule.find(w, object)
			if f == nil {
				continue
			}
			step := Step{Name: stage.name, State: Failed, Says: line(f.says), Do: line(f.do), Rule: rule.name}
			if f.rule != "" {
				step.Rule = f.rule
			}
			if f.mild {
				step.State = Warning
			}
			steps = append(steps, step)
			if !f.mild {
				return steps
			}
			warned = true
		}
		says := stage.passed(w, object)
		switch {
		case says == "" && warned:
			return steps
		case says == "":
			return append(steps, Step{Name: stage.name, State: Waiting, Says: stage.waiting})
		case !warned: // otherwise the warning is what there is to say
			steps = append(steps, Step{Name: stage.name, State: Passed, Says: line(says)})
		}
	}
	return steps
}

// failed returns the finding of another object's way, or nil if it is well.
func failed(steps []Step) *finding {
	for _, step := range steps {
		if step.State == Failed {
			return &finding{says: step.Says, do: step.Do, rule: step.Rule}
		}
	}
	return nil
}

// Explain follows an object, which Parse has returned.
func Explain(ctx context.Context, clients Clients, object Object) (*Report, error) {
	i := slices.IndexFunc(known(), func(k kind) bool { return k.name == object.Kind })
	w := newWorld(ctx, clients)
	steps, err := known()[i].follow(w, object.Namespace, object.Name)
	if err == nil {
		err = w.fault
	}
	if err != nil {
		return nil, err
	}
	return &Report{Object: object, Steps: steps, Unread: w.unread()}, nil
}
