package watches

import (
	"fmt"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
)

func event(key string, revision int64) *server.Event {
	return &server.Event{KV: &server.KeyValue{Key: key, ModRevision: revision}}
}

// A watch whose client does not read is ended, even while it still reads the
// past, and the others continue.
func TestSlowWatchIsEnded(t *testing.T) {
	const buffer = 10
	s := New(buffer)
	slow, reading, quick := s.Join("", "", 0, 5), s.Join("", "", 1, 5), s.Join("", "", 0, 5)
	for revision := int64(6); revision < 6+buffer; revision++ {
		s.Deliver([]*server.Event{event("a", revision)})
		if got := <-quick.Events; got.Events[0].KV.ModRevision != revision || got.CurrentRev != revision {
			t.Errorf("got %v, want %d", got, revision)
		}
	}
	for range slow.Events {
	}
	s.CatchUp(reading, []*server.Event{event("a", 5)})
	if _, ok := <-reading.Events; ok {
		t.Error("one that lags behind got the past")
	}
	if s.LeaveAll(); len(s.all) != 0 {
		t.Errorf("%d watches are left", len(s.all))
	}
	s.Leave(quick) // a second Leave does nothing
}

// Events that are delivered while the past is read come after it.
func TestCatchUp(t *testing.T) {
	s := New(10)
	w := s.Join("", "", 3, 5)
	if !w.Reading || w.After != 2 {
		t.Errorf("got %+v, want a watch that reads what comes after revision 2", w)
	}
	s.Deliver([]*server.Event{event("a", 6)})
	s.CatchUp(w, []*server.Event{event("a", 3), event("a", 5)})
	s.Deliver([]*server.Event{event("a", 7)})
	s.Leave(w)
	got := ""
	for batch := range w.Events {
		for _, e := range batch.Events {
			got += fmt.Sprint(e.KV.ModRevision, " ")
		}
	}
	if got != "3 5 6 7 " {
		t.Errorf("got %s", got)
	}
	if late := s.Join("", "", 6, 5); late.Reading {
		t.Error("one that wants the next one reads the past")
	}
}

func TestFilter(t *testing.T) {
	batch := []*server.Event{event("a/1", 5), event("b/1", 6), event("a/2", 7), event("a", 8)}
	for name, test := range map[string]struct {
		watch Watch
		want  string
	}{
		"all":         {Watch{}, "5 6 7 8 "},
		"one key":     {Watch{Key: "a"}, "8 "},
		"range":       {Watch{Key: "a/", End: "a0"}, "5 7 "},
		"later":       {Watch{Key: "a/", End: "a0", After: 5}, "7 "},
		"none":        {Watch{Key: "c"}, ""},
		"all is past": {Watch{After: 8}, ""},
	} {
		got := ""
		for _, e := range test.watch.filter(batch) {
			got += fmt.Sprintf("%d ", e.KV.ModRevision)
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
