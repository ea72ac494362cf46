package chain

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

// log is a chain with its owner.
type log struct {
	*testing.T
	place place.Place
	key   *RecoveryKey
}

func newLog(t *testing.T) *log {
	t.Helper()
	p, err := place.Open(t.Context(), "file://"+filepath.Join(t.TempDir(), "backup"), config.S3{}, nil)
	if err == nil {
		err = p.Prepare(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewRecoveryKey()
	if err != nil {
		t.Fatal(err)
	}
	return &log{t, p, key}
}

func (l *log) open() *Chain {
	l.Helper()
	c, err := Open(l.Context(), l.place, l.key.Root())
	if err != nil {
		l.Fatal(err)
	}
	return c
}

// appoint names the next writer, who continues after an entry.
func (l *log) appoint(after *Entry) *Writer {
	l.Helper()
	c := l.open()
	w, err := l.key.Appoint(len(c.Appointments())+1, after, time.Now())
	if err == nil {
		err = c.Admit(l.Context(), w)
	}
	if err != nil {
		l.Fatal(err)
	}
	return w
}

// append adds an entry with a content that says something.
func (l *log) append(c *Chain, w *Writer, tail *Entry, content string) *Entry {
	l.Helper()
	e, err := c.Append(l.Context(), w, tail, Entry{Kind: Changes}, l.seal(w, content))
	if err != nil {
		l.Fatal(err)
	}
	return e
}

func (l *log) seal(w *Writer, content string) []byte {
	l.Helper()
	recipients, err := w.Recipients()
	if err != nil {
		l.Fatal(err)
	}
	sealed, err := Seal([]byte(content), recipients...)
	if err != nil {
		l.Fatal(err)
	}
	return sealed
}

func TestLog(t *testing.T) {
	l := newLog(t)
	w := l.appoint(nil)
	c := l.open()
	var tail *Entry
	for i := range 2*perFolder + 3 {
		if i > 3 && i < 2*perFolder-3 && i%perFolder != 0 { // the names are what counts
			tail = &Entry{Number: tail.Number + 1, Sum: tail.Sum}
			continue
		}
		tail = l.append(c, w, tail, "x")
	}
	found, err := l.open().Tail(t.Context())
	if err != nil || found.Number != 2*perFolder+3 || found.Sum != tail.Sum {
		t.Errorf("the newest entry is %+v, %v, want %+v", found, err, tail)
	}
	entry, sealed, err := c.Read(t.Context(), 2)
	if err != nil || entry.Number != 2 {
		t.Fatal(entry, err)
	}
	again, err := ParseRecoveryKey([]byte("# a comment\n\n" + l.key.String() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := again.Open(sealed); err != nil || string(content) != "x" {
		t.Errorf("the key opens %q, %v", content, err)
	}
}

// TestOvertaken lets two servers write the same entry: one of them is told.
func TestOvertaken(t *testing.T) {
	l := newLog(t)
	w := l.appoint(nil)
	c := l.open()
	first := l.append(c, w, nil, "1")
	l.append(c, w, first, "2")
	if _, err := c.Append(t.Context(), w, first, Entry{Kind: Changes, Term: 7}, nil); !errors.Is(err, ErrOvertaken) {
		t.Errorf("got %v", err)
	}
}

// TestLostAnswer takes an entry for written whose answer was lost.
func TestLostAnswer(t *testing.T) {
	l := newLog(t)
	w := l.appoint(nil)
	c := l.open()
	sealed := l.seal(w, "1")
	for range 2 {
		if e, err := c.Append(t.Context(), w, nil, Entry{Kind: Changes}, sealed); err != nil || e.Number != 1 {
			t.Errorf("got %v, %v", e, err)
		}
	}
}

// TestForged refuses what a stolen server writes after the restore, also in the place of what the restored one has written.
func TestForged(t *testing.T) {
	l := newLog(t)
	stolen := l.appoint(nil)
	c := l.open()
	last := l.append(c, stolen, nil, "before")
	before := l.append(c, stolen, last, "unseen by the restore")
	l.appoint(last)
	for number, want := range map[int64]string{1: "", before.Number: "may not write any more"} {
		_, _, err := l.open().Read(t.Context(), number)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("entry %d: got %v, want %q", number, err, want)
		}
	}
	// Another owner's writer is none of this log.
	other := newLog(t)
	w := other.appoint(nil)
	if _, err := l.open().Append(t.Context(), w, before, Entry{Kind: Changes}, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.open().Read(t.Context(), before.Number+1); !errors.Is(err, errForged) {
		t.Errorf("an entry of another owner's writer: got %v", err)
	}
	// Nor can anybody appoint himself.
	w.Appointment.Number, w.Appointment.Root = 3, l.key.Root()
	if err := l.open().Admit(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), l.place, l.key.Root()); !errors.Is(err, errForged) {
		t.Errorf("a forged appointment: got %v", err)
	}
}

// TestNoKey says what a recovery key looks like, and repeats nothing of what it was given.
func TestNoKey(t *testing.T) {
	l := newLog(t)
	for _, text := range []string{"", "# only a comment", l.key.String()[:40], "AGE-SECRET-KEY-1HUSH"} {
		if _, err := ParseRecoveryKey([]byte(text)); err == nil || !strings.Contains(err.Error(), "AGE-SECRET-KEY-1.") || strings.Contains(err.Error(), "HUSH") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
