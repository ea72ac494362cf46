package bench

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
)

const kibibyteBytes = 1 << 10

// lived has the stages of each system, in order, in one life.
type lived map[string][]stage

// livedReport has the results of TestLived.
type livedReport struct {
	origin
	Options livedOptions `json:"options"`
	// Lives has the stages by life and system.
	Lives map[string]lived `json:"lives"`
}

func (r *livedReport) add(life, system string, s stage) {
	if r.Lives[life] == nil {
		r.Lives[life] = lived{}
	}
	r.Lives[life][system] = append(r.Lives[life][system], s)
}

// String describes a stage in a line.
func (s stage) String() string {
	text := s.Step + ":"
	for _, figure := range stageFigures {
		text += fmt.Sprintf(" %s %s;", figure.name, number(figure.of(s)))
	}
	return text
}

// stageFigures are the columns of the table of stages.
var stageFigures = []figure[stage]{
	{"anonymous, MiB", mebibyte, func(s stage) float64 { return s.Rest.OwnAnonymous }},
	{"of pods, MiB", mebibyte, func(s stage) float64 { return s.Rest.Anonymous - s.Rest.OwnAnonymous }},
	{"PSS, MiB", mebibyte, func(s stage) float64 { return s.Rest.OwnPSS }},
	{"cgroup, MiB", mebibyte, func(s stage) float64 { return s.Rest.Cgroup }},
	{"live heap, MiB", mebibyte, func(s stage) float64 { return s.LiveHeap }},
	{"CPU, %", 1, func(s stage) float64 { return s.Rest.CPU }},
	{"written, MiB/h", mebibyte, func(s stage) float64 { return s.Rest.Written }},
	{"took, s", 1, func(s stage) float64 { return s.Seconds }},
	{"its CPU, s", 1, func(s stage) float64 { return s.CPU }},
	{"it wrote, MiB", mebibyte, func(s stage) float64 { return s.Wrote }},
}

// find returns a stage of a system, and the one before it. They are nil if there are none.
func (l lived) find(system, step string) (before, found *stage) {
	for n, s := range l[system] {
		if s.Step != step {
			continue
		}
		if n > 0 {
			before = &l[system][n-1]
		}
		return before, &l[system][n]
	}
	return nil, nil
}

// rise returns by how many bytes the anonymous memory after step is more than after from, or NaN.
func (l lived) rise(system, from, step string) float64 {
	return l.compare(system, from, step, func(from, to atRest) float64 { return to.OwnAnonymous - from.OwnAnonymous })
}

// compare returns f of a system at rest after two steps, or NaN.
func (l lived) compare(system, from, step string, f func(from, to atRest) float64) float64 {
	_, a := l.find(system, from)
	_, b := l.find(system, step)
	if a == nil || b == nil {
		return math.NaN()
	}
	return f(a.Rest, b.Rest)
}

// at returns f of a system at rest after a step, or NaN.
func (l lived) at(system, step string, f func(atRest) float64) float64 {
	return l.compare(system, step, step, func(_, at atRest) float64 { return f(at) })
}

// perUnit returns the bytes of memory for each of what a step has added, or NaN.
func (l lived) perUnit(system, step string, of func(*stage) float64) float64 {
	before, found := l.find(system, step)
	if before == nil || found.Number == 0 {
		return math.NaN()
	}
	return (of(found) - of(before)) / float64(found.Number)
}

// anonymousOf returns the function for the anonymous memory that counts for a unit. That of pods contains
// the shims.
func anonymousOf(unit string) func(*stage) float64 {
	if unit == unitPod {
		return func(s *stage) float64 { return s.Rest.Anonymous }
	}
	return func(s *stage) float64 { return s.Rest.OwnAnonymous }
}

func liveHeapOf(s *stage) float64 { return s.LiveHeap }

// livedTarget is a row with a target of the project.
type livedTarget struct {
	row
	// life is the name of the life that value looks at. whole says that the target is for whole sizes only.
	life  string
	whole bool
	value func(l lived, system string) float64
}

// back returns a target for the memory after a step, by that after another step before it.
func back(life, name, from, step string) livedTarget {
	return livedTarget{life: life, row: row{name: name, scale: 1, most: 1.2}, value: func(l lived, system string) float64 {
		return l.compare(system, from, step, func(from, to atRest) float64 { return to.OwnAnonymous / from.OwnAnonymous })
	}}
}

// each returns a function for the value of a target: the rise between two steps, for each of number.
func each(from, step string, number float64) func(lived, string) float64 {
	return func(l lived, system string) float64 { return l.rise(system, from, step) / number }
}

// livedTargets returns the targets of the project.
func livedTargets(o livedOptions) []livedTarget {
	return []livedTarget{
		{life: "custom", row: row{name: "21 CRDs without objects: more than fresh, MiB", scale: mebibyte, most: 25, ratio: 0.25}, value: each(stepFresh, stepCertManager, 1)},
		{life: "custom", row: row{name: "each with 100 objects and a controller, MiB", scale: mebibyte, most: 1.5, ratio: 0.25}, whole: true, value: each(stepFresh, stepCustom, 21)},
		{life: "custom", row: row{name: "each further CRD, MiB", scale: mebibyte, most: 0.5, ratio: 0.25}, value: each(stepCustom, stepFurther, 20)},
		back("custom", "after all is deleted : fresh", stepFresh, stepDeleted),
		{life: "node", row: row{name: "after an hour's churn: anonymous, MiB", scale: mebibyte, most: 180}, whole: true, value: func(l lived, system string) float64 {
			return l.at(system, stepChurn, func(r atRest) float64 { return r.OwnAnonymous })
		}},
		{life: "node", row: row{name: "CPU at rest : fresh", scale: 1, most: 1.5}, whole: true, value: func(l lived, system string) float64 {
			return l.compare(system, stepFresh, stepChurn, func(from, to atRest) float64 { return to.CPU / from.CPU })
		}},
		{life: "node", row: row{name: "written at rest, MiB an hour", scale: mebibyte, most: 2}, whole: true, value: func(l lived, system string) float64 {
			return l.at(system, stepChurn, func(r atRest) float64 { return r.Written })
		}},
		back("node", "after the churn : before", stepOperators, stepChurn),
		back("node", "after all is deleted : fresh", stepFresh, stepDeleted),
		{life: "objects", row: row{name: "each ConfigMap of 1 KiB, KiB", scale: kibibyteBytes, most: 5}, value: each(stepMiddle, stepAll, float64(o.of(allObjects)))},
		back("objects", "after all is deleted : fresh", stepFresh, stepDeleted),
		{life: "hollow", row: row{name: "all nodes and pods: anonymous, MiB", scale: mebibyte, most: 600}, whole: true, value: func(l lived, system string) float64 {
			return l.at(system, stepHollow, func(r atRest) float64 { return r.OwnAnonymous })
		}},
		{life: "hollow", row: row{name: "CPU with them, % of a core", scale: 1, most: 15}, whole: true, value: func(l lived, system string) float64 {
			return l.at(system, stepHollow, func(r atRest) float64 { return r.CPU })
		}},
		back("hollow", "after all is deleted : fresh", stepFresh, stepDeleted),
	}
}

// Table returns, for each life, the figures after each step, what each added thing takes, and the
// targets.
func (r *livedReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%sat rest over %s, %s after a step, %s after churn and deletion; numbers of objects are divided by %d\n",
		r.heading(), r.Options.Idle, r.Options.Settle, r.Options.Burst, r.Options.Part)
	text.WriteString("memory is without shims and pods, which have a column; the live heap is that of the process that serves the API\n")
	for _, life := range lives {
		if stages := r.Lives[life.name]; len(stages) > 0 {
			fmt.Fprintf(&text, "\n%s\n\n", life.title)
			writeStages(&text, stages, r.Options.Systems)
			text.WriteString("\n")
			r.writeFigures(&text, life.name, stages)
		}
	}
	return text.String()
}

// writeStages writes a line for each step and system.
func writeStages(text *strings.Builder, stages lived, systems []string) {
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "step\tsystem\t")
	for _, figure := range stageFigures {
		fmt.Fprintf(table, "%s\t", figure.name)
	}
	fmt.Fprintln(table)
	for n, s := range stages[systems[0]] {
		name := s.Step
		if s.Number > 0 {
			name = fmt.Sprintf("%s (%d)", name, s.Number)
		}
		for _, system := range systems {
			if n >= len(stages[system]) {
				continue
			}
			fmt.Fprintf(table, "%s\t%s\t", name, system)
			for _, figure := range stageFigures {
				fmt.Fprintf(table, "%s\t", number(figure.of(stages[system][n])))
			}
			fmt.Fprintln(table)
			name = ""
		}
	}
	table.Flush()
}

// quotient returns the ratio of two differences. It means nothing unless both are rises.
func quotient(rise, other float64) string {
	if !(rise > 0 && other > 0) {
		return "-"
	}
	return ratio(rise, other)
}

// writeFigures writes what each added thing takes, and the targets of a life.
func (r *livedReport) writeFigures(text *strings.Builder, life string, stages lived) {
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\t%8s\t%8s\t%6s\tgrowth\ttarget\t\n", kedgeName, baselineName, "ratio")
	before := ""
	for _, s := range stages[r.Options.Systems[0]] {
		last := before
		before = s.Step
		if s.Unit == "" {
			continue
		}
		scale, unit := float64(mebibyte), "MiB"
		if s.Unit == unitObject {
			scale, unit = kibibyteBytes, "KiB"
		}
		line := func(name string, of func(*stage) float64) {
			value := func(system, step string) float64 { return stages.perUnit(system, step, of) / scale }
			ours, theirs := value(kedgeName, s.Step), value(baselineName, s.Step)
			growth := ""
			if s.Again {
				growth = quotient(ours, value(kedgeName, last))
			}
			fmt.Fprintf(table, "%s\t%8s\t%8s\t%6s\t%6s\t\t\n", name, number(ours), number(theirs), quotient(ours, theirs), growth)
		}
		line(fmt.Sprintf("%s, %s per %s", s.Step, unit, s.Unit), anonymousOf(s.Unit))
		line("· live heap", liveHeapOf)
	}
	for _, target := range livedTargets(r.Options) {
		if target.life != life {
			continue
		}
		ours, theirs := target.value(stages, kedgeName)/target.scale, target.value(stages, baselineName)/target.scale
		if theirs <= 0 {
			theirs = math.NaN() // a ratio to it would mean nothing
		}
		said, verdict := target.target(), target.verdict(ours, theirs)
		if target.whole && !r.Options.whole() {
			said, verdict = "", ""
		}
		fmt.Fprintf(table, "%s\t%8s\t%8s\t%6s\t\t%s\t%s\n", target.name, number(ours), number(theirs), ratio(ours, theirs), said, verdict)
	}
	table.Flush()
}
