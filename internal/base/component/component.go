// Package component runs the parts of kedge: it starts them in the order of their
// dependencies, and stops them in reverse order. Each part is a Component, and a Group
// runs them. The server and agent packages build one Group each; every other package
// only implements Component.
package component

import "context"

// Component is one long-running part of kedge.
type Component interface {
	// Name is the component's name in logs, in errors and in `kedge status`.
	Name() string
	// Run blocks until ctx is cancelled or the component fails. It returns nil in the
	// first case, and the reason in the second. It calls ready once, when the components
	// that depend on it may start. A component runs at most once.
	Run(ctx context.Context, ready func()) error
}

// Func makes a Component from a function.
func Func(name string, run func(ctx context.Context, ready func()) error) Component {
	return &function{name, run}
}

// Step makes a Component from something that is done once, such as preparing the host. It
// is ready when do has returned, and idle from then on.
func Step(name string, do func(ctx context.Context) error) Component {
	return Func(name, func(ctx context.Context, ready func()) error {
		if err := do(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		ready()
		<-ctx.Done()
		return nil
	})
}

type function struct {
	name string
	run  func(ctx context.Context, ready func()) error
}

func (f *function) Name() string                                { return f.name }
func (f *function) Run(ctx context.Context, ready func()) error { return f.run(ctx, ready) }

// reporter is the key of the function that Report calls.
type reporter struct{}

// Report says what is wrong with a component that goes on nevertheless, such as one that tries
// again and again, and what to do. Nil says that nothing is wrong any more. ctx is that of the
// component's Run, or comes from it. `kedge status` shows the fault, and its exit status is 1.
// Outside of a Group, Report does nothing.
func Report(ctx context.Context, fault error) {
	if report, is := ctx.Value(reporter{}).(func(error)); is {
		report(fault)
	}
}
