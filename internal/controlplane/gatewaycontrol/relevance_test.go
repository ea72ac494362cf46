package gatewaycontrol

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestRelevance(t *testing.T) {
	named := func(name string) object { return object{serviceKind, types.NamespacedName{Name: name}} }
	var r relevance
	if r.touch(named("a")) {
		t.Error("at first something matters")
	}
	r.begin()
	r.touch(named("a"))
	r.touch(named("b"))
	if !r.end(map[object]bool{named("a"): true}) {
		t.Error("an object that was found to matter while it changed is not looked at again")
	}
	if !r.touch(named("a")) || r.touch(named("b")) {
		t.Error("only a matters")
	}
	r.begin()
	r.touch(named("a"))
	if r.end(map[object]bool{named("a"): true, named("c"): true}) {
		t.Error("a change that was told already leads to two runs")
	}
}
