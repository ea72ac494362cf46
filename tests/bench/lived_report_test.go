package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestLivedTable(t *testing.T) {
	at := func(step, unit string, number int, anonymous, pods float64) stage {
		return stage{Step: step, Unit: unit, Number: number, LiveHeap: anonymous / 2 * mebibyte, Rest: atRest{
			OwnAnonymous: anonymous * mebibyte, Anonymous: (anonymous + pods) * mebibyte,
		}}
	}
	report := livedReport{Options: livedOptions{Systems: systems(), Part: 1}, Lives: map[string]lived{}}
	for _, s := range []stage{
		at(stepFresh, "", 0, 100, 0), at("first", unitCRD, 10, 110, 0), at(stepCertManager, unitCRD, 11, 121, 0),
		at(stepCustom, "", 0, 142, 0), at(stepFurther, unitCRD, 20, 182, 0), at(stepDeleted, "", 0, 130, 0),
	} {
		report.add("custom", kedgeName, s)
	}
	for _, s := range []stage{
		at(stepFresh, "", 0, 300, 0), at("first", unitCRD, 10, 400, 0), at(stepCertManager, unitCRD, 11, 510, 0),
		at(stepCustom, "", 0, 720, 0), at(stepFurther, unitCRD, 20, 700, 0), at(stepDeleted, "", 0, 300, 0),
	} {
		report.add("custom", baselineName, s)
	}
	report.add("node", kedgeName, at(stepFresh, "", 0, 100, 0))
	report.add("node", kedgeName, at("+ pods", unitPod, 4, 101, 7))
	again := at("+ as many again", unitPod, 4, 103, 17)
	again.Again = true
	report.add("node", kedgeName, again)
	table := report.Table()
	for _, want := range []string{
		"first, MiB per CRD 1.00 10.0 0.10",
		stepCertManager + ", MiB per CRD 1.00 10.0 0.10",
		"21 CRDs without objects: more than fresh, MiB 21.0 210.0 0.10 ≤ 25, ratio ≤ 0.25 met",
		"each with 100 objects and a controller, MiB 2.00 20.0 0.10 ≤ 1.5, ratio ≤ 0.25 NOT MET, the ratio is",
		"each further CRD, MiB 2.00 - - ≤ 0.5, ratio ≤ 0.25 NOT MET",
		"after all is deleted : fresh 1.30 1.00 1.30 ≤ 1.2 NOT MET",
		"+ pods, MiB per pod 2.00 - -",
		"+ as many again, MiB per pod 3.00 - - 1.50",
	} {
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(line string) bool {
			return strings.Join(strings.Fields(line), " ") == want
		}) {
			t.Errorf("the table has no line %q:\n%s", want, table)
		}
	}
	report.Options.Part = 10
	if table := report.Table(); strings.Contains(table, "≤ 1.5") || !strings.Contains(table, "≤ 25") {
		t.Errorf("the table of a tenth does not have the right targets:\n%s", table)
	}
}

// TestExamples makes sure that there is an object of each kind that TestLived defines first.
func TestExamples(t *testing.T) {
	for project, want := range map[string]int{"prometheus-operator": 10, "argo-rollouts": 5, "cert-manager": 6} {
		examples, err := readExamples(project)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string]bool{}
		for _, example := range examples {
			kinds[example.GetKind()] = true
		}
		if len(kinds) != want {
			t.Errorf("%s has objects of %d kinds, want %d", project, len(kinds), want)
		}
	}
}

func TestRandomText(t *testing.T) {
	one, again, other := randomText(1, 1024), randomText(1, 1024), randomText(2, 1024)
	if len(one) != 1024 || !slices.Equal(one, again) || slices.Equal(one, other) {
		t.Errorf("got %q, %q and %q", one, again, other)
	}
}
