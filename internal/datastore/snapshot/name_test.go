package snapshot

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNames(t *testing.T) {
	at := time.Unix(1_800_000_000, 0).UTC()
	for _, node := range []string{"pi", "node-1", "a.b.example", "on-demand-pi"} {
		for _, name := range []string{OnDemand, "before.upgrade-2", "x"} {
			gotName, gotTime, ok := parseName(fileName(name, node, at), node)
			if !ok || gotName != name || !gotTime.Equal(at) {
				t.Errorf("%s by %s: %q, %s, %t", name, node, gotName, gotTime, ok)
			}
		}
	}
	for _, file := range []string{
		"on-demand-pi-1800000000", "on-demand-pi-.zst", "on-demand-other-1800000000.zst", "-pi-1800000000.zst",
		"pi-1800000000.zst", "on-demand-pi-9999999999999999999999.zst", "etcd.zst", ".zst", "",
	} {
		if name, _, ok := parseName(file, "pi"); ok {
			t.Errorf("%q is taken for one called %q", file, name)
		}
	}
	for _, name := range []string{"", "Upper", "a/b", "..", "-a", "a b", strings.Repeat("a", 64)} {
		if checkName(name) == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
}

func TestSurplus(t *testing.T) {
	files := []File{
		{Name: "scheduled-pi-100.zst"}, {Name: "scheduled-pi-300.zst"}, {Name: "scheduled-pi-200.zst"}, {Name: "scheduled-pi-99.zst"},
		{Name: "on-demand-pi-1.zst"}, {Name: "on-demand-pi-2.zst"},
		{Name: "scheduled-other-1.zst"}, {Name: "mine.zst"},
	}
	for _, test := range []struct {
		name      string
		retention int
		want      string
	}{
		{Scheduled, 2, "scheduled-pi-100.zst scheduled-pi-99.zst"},
		{Scheduled, 4, ""},
		{Scheduled, 9, ""},
		{OnDemand, 1, "on-demand-pi-1.zst"},
		{"", 1, "scheduled-pi-200.zst scheduled-pi-100.zst scheduled-pi-99.zst on-demand-pi-1.zst"},
		{"none", 1, ""},
	} {
		var got []string
		for _, f := range surplus(slices.Clone(files), "pi", test.name, test.retention) {
			got = append(got, f.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}
