package sockets

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// slow is a connection whose writes wait until the test lets them go.
type slow struct {
	mu     sync.Mutex
	all    []byte
	writes int
	closed bool
	// let receives a value for each write, or is nil.
	let chan error
}

func (s *slow) write(bytes []byte) (int, error) {
	if s.let != nil {
		if err := <-s.let; err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, bytes...)
	s.writes++
	return len(bytes), nil
}

func (s *slow) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// TestGatherer writes pieces of all sizes. They arrive in their order.
func TestGatherer(t *testing.T) {
	testutil.CheckLeaks(t)
	to := &slow{}
	g := newGatherer(to.write, to.close)
	var want []byte
	for i := range 2000 {
		piece := bytes.Repeat([]byte{byte(i)}, rand.IntN(100))
		if i%50 == 0 {
			piece = bytes.Repeat([]byte{byte(i)}, smallWrite+rand.IntN(100))
		}
		if n, err := g.Write(piece); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
		want = append(want, piece...)
		clear(piece) // its owner uses it again
		if i%7 == 0 {
			runtime.Gosched()
		}
	}
	g.drain()
	if !bytes.Equal(to.all, want) {
		t.Error("the bytes arrive in another order")
	}
	if g.pending != nil {
		t.Error("a connection without a write keeps a buffer")
	}
}

// TestGathererTogether writes while the first write has not ended. The rest is one more write.
func TestGathererTogether(t *testing.T) {
	testutil.CheckLeaks(t)
	to := &slow{let: make(chan error)}
	g := newGatherer(to.write, to.close)
	for range 10 {
		if _, err := g.Write([]byte("a frame ")); err != nil {
			t.Fatal(err)
		}
	}
	to.let <- nil
	if _, err := g.Write([]byte("and the last one")); err != nil {
		t.Fatal(err)
	}
	close(to.let)
	g.drain()
	if want := "a frame a frame a frame a frame a frame a frame a frame a frame a frame a frame and the last one"; string(to.all) != want || to.writes > 2 {
		t.Errorf("%d writes of %q", to.writes, to.all)
	}
}

// TestGathererFull has a client that reads nothing. The writer waits before the memory of the node is full.
func TestGathererFull(t *testing.T) {
	testutil.CheckLeaks(t)
	to := &slow{let: make(chan error)}
	g := newGatherer(to.write, to.close)
	gone, ended := errors.New("the client has gone"), make(chan error)
	go func() {
		for {
			if _, err := g.Write(make([]byte, 1000)); err != nil {
				ended <- err
				return
			}
		}
	}()
	size := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.pending)
	}
	for deadline := time.Now().Add(generous); size() < mostGathered; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing waits")
		}
	}
	if got := size(); got > mostGathered+1000 {
		t.Errorf("%d bytes wait", got)
	}
	to.let <- gone
	if err := <-ended; !errors.Is(err, gone) {
		t.Errorf("the writer gets %v", err)
	}
	g.drain()
	if _, err := g.Write(make([]byte, smallWrite)); !errors.Is(err, gone) {
		t.Errorf("a large write gets %v", err)
	}
	for deadline := time.Now().Add(generous); ; time.Sleep(time.Millisecond) {
		to.mu.Lock()
		closed := to.closed
		to.mu.Unlock()
		if closed {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the connection is not closed")
		}
	}
}

// patient is a connection whose writes take a while, and that fails writes after their deadline.
type patient struct {
	net.Conn
	began, goOn chan struct{}

	mu       sync.Mutex
	deadline time.Time
	all      []byte
}

func (p *patient) Write(bytes []byte) (int, error) {
	close(p.began)
	<-p.goOn
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deadline.IsZero() && !p.deadline.After(time.Now()) {
		return 0, os.ErrDeadlineExceeded
	}
	p.all = append(p.all, bytes...)
	return len(bytes), nil
}

func (p *patient) SetWriteDeadline(deadline time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = deadline
	return nil
}

// TestDeadlineAfterWrite sets a deadline that has passed, as crypto/tls does before it closes a connection. What
// was written before goes out.
func TestDeadlineAfterWrite(t *testing.T) {
	testutil.CheckLeaks(t)
	to := &patient{began: make(chan struct{}), goOn: make(chan struct{})}
	c := &conn{Conn: to, stall: time.Minute}
	c.gather()
	if _, err := c.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	<-to.began
	set := make(chan struct{})
	go func() {
		defer close(set)
		_ = c.SetWriteDeadline(time.Now())
	}()
	select {
	case <-set:
		t.Error("the deadline comes before the write has ended")
	case <-time.After(50 * time.Millisecond):
	}
	close(to.goOn)
	<-set
	if string(to.all) != "last words" {
		t.Errorf("%q went out", to.all)
	}
}

// TestLastWords ends a connection of HTTP/2. What the server has said before arrives: GOAWAY, and the alert of
// TLS that says that nothing was cut off.
func TestLastWords(t *testing.T) {
	w := newWorld(t, nil)
	w.state.Certificates["c"] = newAuthority(t, "ca").leaf("a.example")
	port := w.open("https", routing.TCP, routing.Listener{Name: "l", Protocol: routing.HTTPS, Certificates: []string{"c"}})
	raw, err := net.Dial("tcp", local(port))
	must(t, err)
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	_, err = io.WriteString(c, http2.ClientPreface)
	must(t, err)
	frames := http2.NewFramer(c, c)
	must(t, frames.WriteSettings())
	// The server answers this with an error of the connection.
	must(t, frames.WriteData(1, true, nil))
	goAway := false
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			// crypto/tls returns io.EOF only after the alert.
			if !errors.Is(err, io.EOF) || !goAway {
				t.Errorf("GOAWAY came: %t; the connection ends with %v", goAway, err)
			}
			return
		}
		if _, is := frame.(*http2.GoAwayFrame); is {
			goAway = true
		}
	}
}
