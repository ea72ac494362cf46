package requests

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

func bodyOf(r io.Reader, limit int64, bound int) *body {
	request, _ := http.NewRequest(http.MethodPost, "http://a", r)
	request.ContentLength = -1
	return newBody(httptest.NewRecorder(), request, limit, bound)
}

// TestBodyAgain sees that a body can be read again as long as it is kept.
func TestBodyAgain(t *testing.T) {
	whole := ""
	b := bodyOf(iotest.OneByteReader(strings.NewReader("the body")), 0, 8)
	b.whole = func(content []byte) { whole = string(content) }
	first := b.reader()
	part := make([]byte, 3)
	if _, err := io.ReadFull(first, part); err != nil {
		t.Fatal(err)
	}
	first.Close()
	for range 2 {
		again, err := b.again()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(again); string(got) != "the body" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if whole != "the body" {
		t.Errorf("the whole body is %q", whole)
	}
	if _, err := first.Read(part); !errors.Is(err, errBodyEnded) {
		t.Errorf("a closed reader: %v", err)
	}
	b.end()
	if _, err := b.reader().Read(part); !errors.Is(err, errBodyEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// TestBodyGone sees that a body that is too long to be kept can be read once.
func TestBodyGone(t *testing.T) {
	b := bodyOf(strings.NewReader("the body!"), 0, 8)
	b.whole = func([]byte) { t.Error("the body is called whole") }
	early := b.reader()
	if got, err := io.ReadAll(b.reader()); string(got) != "the body!" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := b.again(); !errors.Is(err, errBodyGone) || !b.isGone() {
		t.Errorf("got %v", err)
	}
	if _, err := early.Read(make([]byte, 1)); !errors.Is(err, errBodyGone) {
		t.Errorf("got %v", err)
	}
}

func TestBodyFails(t *testing.T) {
	b := bodyOf(strings.NewReader("the body"), 7, 100)
	if _, err := io.ReadAll(b.reader()); err == nil || !b.isTooLarge() {
		t.Errorf("got %v", err)
	}
	b = bodyOf(iotest.ErrReader(io.ErrUnexpectedEOF), 0, 100)
	if _, err := io.ReadAll(b.reader()); !errors.Is(err, io.ErrUnexpectedEOF) || !b.hasFailed() || b.isTooLarge() {
		t.Errorf("got %v", err)
	}
	request, _ := http.NewRequest(http.MethodGet, "http://a", nil)
	if b := newBody(httptest.NewRecorder(), request, 1, 1); b != nil || b.isGone() || b.isTooLarge() || b.hasFailed() {
		t.Errorf("a request without a body has %v", b)
	}
}

// silentBody is the body of a client that is silent after its first bytes. As with http.Server, the
// context of the request ends before the read fails.
type silentBody struct {
	io.Reader
	cancel context.CancelFunc
	late   bool
	err    error
}

func (b *silentBody) Read(into []byte) (int, error) {
	n, err := b.Reader.Read(into)
	if err == io.EOF {
		b.cancel()
		time.Sleep(10 * time.Millisecond) // for whoever looks at the context
		err = b.err
	}
	return n, err
}

func (b *silentBody) Close() error { return nil }
func (b *silentBody) Late() bool   { return b.late }

// TestLateBody answers 408 to a client that is silent in the middle of its body, with all versions of
// HTTP. To one that has gone, nothing is said.
func TestLateBody(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", nil)
	send := func(major int, late bool, err error) (status int) {
		defer func() {
			if recovered := recover(); recovered != nil {
				status = 0
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", &silentBody{strings.NewReader("begun"), cancel, late, err})
		r.ProtoMajor = major
		return w.record(r).Code
	}
	for major := 1; major <= 3; major++ {
		if got := send(major, true, os.ErrDeadlineExceeded); got != http.StatusRequestTimeout {
			t.Errorf("a silent client of HTTP/%d gets %d", major, got)
		}
		if got := send(major, false, io.ErrUnexpectedEOF); got != 0 {
			t.Errorf("a client of HTTP/%d that has gone gets %d", major, got)
		}
	}
}
