package sources

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestRelevance(t *testing.T) {
	touch := func(r *relevance, name string) bool { return r.touch(Service, "", name) }
	// named names objects, some of them in another list than the others.
	named := func(names ...string) Names {
		all := Names{Pod: {{{Name: "b"}: true}}}
		for _, name := range names {
			all[Service] = append(all[Service], map[types.NamespacedName]bool{{Name: name}: true})
		}
		return all
	}
	var r relevance
	if touch(&r, "a") {
		t.Error("at first something matters")
	}
	r.begin()
	touch(&r, "a")
	touch(&r, "b")
	if !r.end(named("a")) {
		t.Error("an object that was found to matter while it changed is not looked at again")
	}
	if !touch(&r, "a") || touch(&r, "b") {
		t.Error("only a matters")
	}
	r.begin()
	touch(&r, "a")
	if r.end(named("a", "c")) {
		t.Error("a change that was told already leads to two runs")
	}
}
