package sockets

import (
	"runtime"
	"sync"
)

const (
	// smallWrite is from which size on a write goes out by itself. A copy of it would cost more than a call
	// of the kernel.
	smallWrite = 4 << 10
	// mostGathered is how many bytes may wait for the write before them. Then Write waits, too.
	mostGathered = 16 << 10
)

// gatherer puts small writes to a connection of HTTP/2 together. The server of net/http writes the header of
// an answer, its body and the frames of other requests one by one, and each write would be a call of the
// kernel and a packet. A gatherer lets the goroutines that are ready to run write first, and then sends
// everything at once. With 4 requests at a time, an answer then takes half of a call in place of two.
//
// A write that has returned may not have happened yet. If it fails, the connection is closed, and the next
// write fails.
type gatherer struct {
	// write writes to the connection, and close closes it.
	write func([]byte) (int, error)
	close func() error

	mu sync.Mutex
	// progress is signalled when pending becomes empty, and when busy becomes false.
	progress sync.Cond
	pending  []byte
	// busy says that somebody writes, or is about to.
	busy bool
	err  error
}

func newGatherer(write func([]byte) (int, error), close func() error) *gatherer {
	g := &gatherer{write: write, close: close}
	g.progress.L = &g.mu
	return g
}

// Write implements io.Writer. It does not keep the bytes.
func (g *gatherer) Write(bytes []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(bytes) >= smallWrite {
		g.waitLocked(func() bool { return !g.busy })
		if g.err == nil {
			g.busy = true
			g.writeLocked(bytes)
			g.busy = false
			g.progress.Broadcast()
		}
	} else {
		g.waitLocked(func() bool { return len(g.pending) < mostGathered })
		if g.err == nil {
			g.pending = append(g.pending, bytes...)
			if !g.busy {
				g.busy = true
				go g.run()
			}
		}
	}
	if g.err != nil {
		return 0, g.err
	}
	return len(bytes), nil
}

// run writes what is pending until there is nothing.
func (g *gatherer) run() {
	runtime.Gosched() // those that are about to write do it first
	g.mu.Lock()
	var spare []byte
	for len(g.pending) > 0 && g.err == nil {
		taken := g.pending
		g.pending = spare[:0]
		g.progress.Broadcast()
		g.writeLocked(taken)
		spare = taken
	}
	g.pending, g.busy = nil, false
	g.progress.Broadcast()
	failed := g.err != nil
	g.mu.Unlock()
	if failed {
		_ = g.close()
	}
}

// writeLocked writes, without the lock meanwhile.
func (g *gatherer) writeLocked(bytes []byte) {
	g.mu.Unlock()
	_, err := g.write(bytes)
	g.mu.Lock()
	if err != nil {
		g.err = err
	}
}

// drain waits until everything was written, or until a write has failed.
func (g *gatherer) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waitLocked(func() bool { return !g.busy })
}

// waitLocked waits until something is so, or until a write has failed.
func (g *gatherer) waitLocked(is func() bool) {
	for g.err == nil && !is() {
		g.progress.Wait()
	}
}
